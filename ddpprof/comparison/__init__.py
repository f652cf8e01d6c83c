"""Two jobs side by side, of one run each or of several, and limits that the second is to keep.

compare.py       what grew, by how much, and whether that is more than noise (between_runs.py)
gate.py          ``--fail-on``
run_set.py       runs of one job as one side; repeated.py: the same beside each other
"""
