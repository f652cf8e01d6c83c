"""Horovod: a timeline of what rank 0 saw of every collective, from the file to the report's words.

street.py         what the main road calls
timeline_file.py  a file → a timeline
timeline.py       a timeline: the collectives that rank 0 saw
steps.py          the steps of a timeline
reductions.py     how long each reduction takes, and with what its time passes
waiting.py        which rank the others wait for
rules.py          what to change
sections.py       the report's tables
"""
