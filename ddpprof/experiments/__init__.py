"""Experiments: the user's script is run many times, in short trials that differ in the setting under test."""
