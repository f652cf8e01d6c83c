"""Ranks compared: which ranks are late, which ranks wait for which, and what their clocks show."""
