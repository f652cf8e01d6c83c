"""Gradient buckets: when each was ready and sent, and rules about them."""
