"""Compares the ranks of a job."""
