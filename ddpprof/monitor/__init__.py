"""Monitor a run from the pulses (heartbeat files) of its ranks, and diagnose slowdowns, hangs and failures."""
