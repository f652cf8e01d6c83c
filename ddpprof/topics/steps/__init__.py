"""A step: how its time is divided, and how much communication is hidden in it."""
