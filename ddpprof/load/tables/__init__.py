"""The columns of a trace file → the tables of one rank, `Trace`.

trace_rows.py    the columns, and what the names of events say of each row
steps.py         steps and phases: which of them an instant belongs to
host.py          where there is no accelerator: computation of threads, and who asked for which collective
device.py        accelerators: which launch and which op a kernel belongs to
build.py         all tables
cycles.py        several traces of one rank → one
"""
