"""Collectives: which belong together on several ranks, and how fast they are."""
