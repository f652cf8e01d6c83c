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
"""
