"""Gradient buckets: when each was ready and sent, and what to change about them."""
