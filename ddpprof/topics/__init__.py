"""Topics: each one answers a question about a job, and holds its measure, its rules and its text."""
