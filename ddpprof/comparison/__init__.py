"""Comparison of two jobs, each with one run or several, and limits for the second."""
