"""Analyze runs: read ranks in parallel, cache their summaries, and merge these into a report."""
