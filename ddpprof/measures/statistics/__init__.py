"""Intervals, ratios and models of measured times of any kind."""
