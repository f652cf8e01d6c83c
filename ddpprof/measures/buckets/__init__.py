"""Measures of when gradients are reduced, in which buckets, and what hides it.

backward_passes.py   When does each backward pass of a step compute, and what begins after it?
bucket_steps.py      When is each gradient bucket ready, launched, started and finished?
bucket_summary.py    The bucket table: medians over backward passes, steps and ranks, and the rank that launched last
gradient_reduces.py  Which all-reduces carry gradients, and does torch's DDP launch them?
overlap.py           How much communication hides behind computation?
traced_buckets.py    Which buckets does a trace show without ddpprof's record?
trailing.py          How long does gradient communication go on after the last computation of the backward pass?
"""
