"""Ordinary training scripts for ``ddpprof demo``. They know nothing of ddpprof; each runs by itself, or under torchrun."""
