"""Comparison of two jobs, each with one run or several, and limits for the second.

compare.py       what grew, by how much, and whether that is more than noise (between_runs.py)
gate.py          ``--fail-on``
run_set.py       runs of one job as one side; repeated.py: the same runs compared with each other
kernels.py       Which kernels became slower?
"""
