"""Comparison of the ranks of a job."""
