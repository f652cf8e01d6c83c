"""Experiments: the user's script run many times, in short trials that differ in what is asked about.

plan.py      what is to be run: variants of the job, and the trials of each
vary.py      `--vary` and `--set`: from words to changes of the job
conduct.py   runs the trials, in turn, and goes on where an earlier attempt stopped
"""
