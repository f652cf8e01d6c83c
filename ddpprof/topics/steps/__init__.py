"""A step: how its time divides, and how much communication is hidden in it."""
