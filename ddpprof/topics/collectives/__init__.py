"""Collectives: which rows of several ranks are the same collective, and how fast collectives are."""
