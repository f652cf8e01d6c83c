"""Files → model: a run directory, traces of torch.profiler, timelines and tables of others become a `Run`.

run.py            a run directory, a folder of traces, or one trace file → `Run`; parts of a run, attempts
record.py         what the recorder wrote for one rank; losses.py, exits.py, netbench.py: other files of a run
folder.py         traces under any name: which rank each is of, and which belong together
other_files.py    files of other tools, which side streets read; csv_times.py: a table of times
limits.py         what is refused, and the options that raise it

A trace takes this way, and every step of it is the next one's input:

inflate.py        the file's bytes, plain or inflated
kineto.py         a trace file as a whole, streamed where its layout allows it
batches.py        its text in batches; parallel.py has several processes decode them
decoding.py       a batch's events, as little of each as is needed (entries.py, prefilter.py, arguments.py)
collector.py      events → columns (columns.py); merge.py puts those of several processes together
classify.py       what an event is, by its category and name; trace_rows.py: the same for each row
tables.py         columns → the tables of one rank (hostwork.py where there is no accelerator, devicework.py, steps.py)
cycles.py         several traces of one rank → one

plugin_trace.py   a trace rewritten for TensorBoard's profiler plugin
"""
