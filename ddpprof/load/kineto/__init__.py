"""A trace file of torch.profiler → columns. Each file is the next one's input:

events.py     a batch's events as the decoder makes them, and the choice of those that the tables may need
arguments.py  the ``args`` of an event
collect.py    needed events → columns of a batch
columns.py    columns of all batches and processes → columns of the file
decode.py     the file's text → batches → collected columns, by this process and by others
read.py       a file → header and columns
"""
