"""Comparison of two jobs, each with one run or several, and limits for the second.

run_set.py       runs of one job as one side
compare.py       what grew, by how much, and whether that is more than noise
between_runs.py  how much two jobs differ, if each run is one observation
kernels.py       which kernels became slower
conditions.py    the limits of ``--fail-on``
gate.py          ``--fail-on``: has the job become slower by more than these?
repeated.py      the runs of one job, compared with each other
"""
