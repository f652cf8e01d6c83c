"""The columns of a trace file → the tables of one rank, `Trace`.

trace_rows.py  the columns, with what each row is by the name of its event
steps.py       steps and phases: which of them an instant belongs to
host.py        without an accelerator: computation of threads, and which call asked for a collective
device.py      accelerators: which launch and which op a kernel belongs to
build.py       all tables
cycles.py      several traces of one rank → one
"""
