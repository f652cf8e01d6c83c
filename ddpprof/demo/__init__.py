"""Ordinary training scripts for ``ddpprof demo``. They know nothing of ddpprof and run by themselves."""
