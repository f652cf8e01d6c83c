"""Many ranks, or few large ones: who reads them, where what was found is kept, and how it becomes one report.

analysis.py   from a path to its report and timeline: what the command line calls
task.py       the map: one rank's files → its entry, in any process on any machine
entry.py      what an entry holds: the rank's summary, and its steps as they are drawn
codec.py      summaries as bytes
cache.py      where entries are kept, and which still hold
pool.py       the map on this machine's cores
cluster.py    the map on a Dask cluster
selection.py  which ranks are read
numbers.py    which numbers were asked for
"""
