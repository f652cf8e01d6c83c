"""Experiments: run the user's script many times in short trials with different settings."""
