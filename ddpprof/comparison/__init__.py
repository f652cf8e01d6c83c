"""Comparison of two jobs, each with one or more runs, and limits for the second job."""
