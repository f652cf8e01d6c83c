"""Measures of single kernels and whole devices."""
