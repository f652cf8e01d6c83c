"""Measures collectives: which ones run, how fast, and which rows of different ranks belong to the same one."""
