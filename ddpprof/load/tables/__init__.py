"""The columns of a trace file → the tables of one rank, `Trace`."""
