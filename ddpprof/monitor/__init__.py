"""Whole runs: the pulses of all ranks, who reads them, and verdicts on jobs that slow down, hang or fail."""
