"""One question about a job each, from the measure to the words."""
