"""Measures single kernels and whole devices."""
