"""Jobs that hang or have failed: which rank holds them up, where, and why."""
