"""Files → model: a run directory, traces of torch.profiler, timelines and tables of others become a `Run`.

run.py             a run directory, a folder of traces, or one trace file → `Run`
folder.py          traces under any name: the rank of each, and which belong together
attempts.py        the attempts of one job that torchrun restarted: which of them a report shows
step_selection.py  some steps of a rank, as if it had no others

The files of one rank:
rank.py            the files of one rank → `Rank`
record.py          the recorder's files of one rank
kineto/            a trace file → columns
classify.py        the role of an event, by its category and name
tables/            columns → the tables of one rank

Other files:
whole_run.py       how the whole training went: the pulses of its ranks, and what its launcher noted
losses.py          the losses of each step
exits.py           how processes ended, as their parents saw it
netbench.py        a network, as measured by `ddpprof netbench`
csv_times.py       a table of times
other_files.py     files of other tools, which side streets read
plugin_trace.py    a trace rewritten for TensorBoard's profiler plugin

Bytes and text:
limits.py          limits on size, and the options that raise them
inflate.py         a file's bytes, plain or inflated
lenient_json.py    JSON that is not quite valid, as Kineto writes it
nanoseconds.py     exact times from Kineto's microseconds
helper_process.py  a process that reads for another: its start, what it sends, and its end with that one
free_memory.py     returns the memory of freed arrays to the system
"""
