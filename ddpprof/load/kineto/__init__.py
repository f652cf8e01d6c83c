"""A trace file of torch.profiler → columns. Each file is the next one's input:

stream.py         the file's bytes, inflated, in batches that end where an event ends
events.py         a batch's events as the decoder makes them, and their times
arguments.py      the ``args`` of an event
classify.py       the role of an event, by its category and name
event_filter.py   which events of a batch the tables may need
collect.py        needed events → columns of a batch
columns.py        columns of all batches and processes → columns of the file
decode.py         all batches → collected columns, by this process and by others
read.py           a file → header and columns
"""
