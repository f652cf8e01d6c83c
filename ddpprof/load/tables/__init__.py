"""Build the tables of one rank's `Trace` from the columns of a trace file."""
