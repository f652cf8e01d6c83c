"""Intervals, ratios and models of measured times, whatever the times are of."""
