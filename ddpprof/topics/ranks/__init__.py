"""Ranks compared: who is late, who waits for whom, and what their clocks show."""
