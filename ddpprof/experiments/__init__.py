"""Experiments: the user's script is run many times, in short trials that differ in what is examined.

plan.py      what to run: variants of the job, and the trials of each
vary.py      `--vary` and `--set`: from words to changes of the job
conduct.py   execution of the trials in turn, continuing where an earlier attempt stopped
"""
