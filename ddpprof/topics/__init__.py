"""Topics: each one answers a question about a job, from the measure to the words."""
