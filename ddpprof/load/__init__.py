"""Files → model: a run directory, traces of torch.profiler, timelines and tables of others become a `Run`.

run.py            a run directory, a folder of traces, or one trace file → `Run`; parts of a run, attempts
rank.py           the files of one rank → `Rank`
record.py         the recorder's files of one rank; losses.py, exits.py, netbench.py: other files of a run
whole_run.py      how the whole training went: the pulses of its ranks, and what its launcher noted
folder.py         traces under any name: the rank of each, and which belong together
kineto/           a trace file → columns
tables/           columns → the tables of one rank
other_files.py    files of other tools, which side streets read; csv_times.py: a table of times
plugin_trace.py   a trace rewritten for TensorBoard's profiler plugin
inflate.py        a file's bytes, plain or inflated; limits.py: limits on size, and the options that raise them
lenient_json.py   JSON that is not quite valid, as Kineto writes it; nanoseconds.py: exact times from its microseconds
classify.py       the role of an event, by its category and name
attempts.py       the attempts of one job that torchrun restarted: which of them a report shows
free_memory.py    returns the memory of freed arrays to the system
helper_process.py A process that reads for another: its start, what it sends, and its end with that one
step_selection.py some steps of a rank, as if it had no others
"""
