"""Analyze runs: read ranks in parallel, cache their summaries, and merge the summaries into a report."""
