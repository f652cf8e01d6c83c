"""Ordinary training scripts for ``ddpprof demo``. They know nothing of ddpprof and can run on their own."""
