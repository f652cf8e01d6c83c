"""Experiments: run the user's script many times, in short trials that differ in the setting under test."""
