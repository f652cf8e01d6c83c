"""Analysis of many ranks, or a few large ones: who reads them, where results are kept, and how they form one report.

analysis.py        from a path to its report and timeline: the entry point for the command line
rank_selection.py  which ranks are read
entry.py           the map: one rank's files → its entry, which has the rank's summary, and its steps for drawing
cache.py           where entries are kept, and which are still valid
pool.py            the map on this machine's cores
cluster.py         the map on a Dask cluster
memory.py          how much memory is left, in the system and in the control groups of this process
numbers.py         which numbers were requested
progress.py        progress of the map, for those who wait for it
whatif.py          predictions for a run by Python code
"""
