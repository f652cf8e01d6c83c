"""Measures of when gradients are reduced, in which buckets, and what hides it."""
