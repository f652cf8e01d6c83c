"""Measures of collectives: which ones run, how fast, and which rows of different ranks belong together."""
