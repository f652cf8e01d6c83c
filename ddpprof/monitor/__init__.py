"""Whole runs: readers of the pulses that ranks leave, and verdicts on them. Nothing in here imports torch."""
