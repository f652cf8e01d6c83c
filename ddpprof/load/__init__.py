"""Files → model: a run directory, traces of torch.profiler, timelines and tables of others become a `Run`.

run.py            a run directory, a folder of traces, or one trace file → `Run`; parts of a run, attempts
rank.py           the files of one rank → `Rank`
record.py         the recorder's files of one rank; losses.py, exits.py, netbench.py: other files of a run
folder.py         traces under any name: the rank of each, and which belong together
kineto/           a trace file → columns
tables/           columns → the tables of one rank
other_files.py    files of other tools, which side streets read; csv_times.py: a table of times
plugin_trace.py   a trace rewritten for TensorBoard's profiler plugin
limits.py         limits on size, and the options that raise them
attempts.py        The attempts of one job that torchrun restarted: which of them a report shows
free_memory.py     Memory that arrays gave back goes back to the system
helper_process.py  How a process that was started for reading begins, and ends with the one that started it
repair_json.py     Makes JSON of what Kineto writes and no decoder takes
step_selection.py  Some steps of a rank, as if it had no others
"""
