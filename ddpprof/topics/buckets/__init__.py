"""Gradient buckets: when each was ready and sent, what to change about them."""
