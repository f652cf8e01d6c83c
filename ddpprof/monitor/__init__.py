"""Monitoring of whole runs: pulses of all ranks, their readers, and verdicts on jobs that slow down, hang or fail."""
