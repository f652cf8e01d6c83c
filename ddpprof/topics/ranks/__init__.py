"""Comparison of ranks: which ranks are late, which ranks wait, and the offsets of their clocks."""
