"""Splits the time of a step into its parts."""
