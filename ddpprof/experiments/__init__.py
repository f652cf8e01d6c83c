"""Experiments: the user's script is run many times, in short trials that differ in what is examined.

plan.py               what to run: variants of the job, and the trials of each
vary.py               `--vary` and `--set`: from words to changes of the job
conduct.py            execution of the trials in turn, continuing where an earlier attempt stopped
trials.py             the result of one trial
last_error.py         which line of a trial's output says why it failed
results.py            trials → result, by the kind of the experiment
overhead.py           what DDP costs
scaling.py            what more ranks give
sweep.py              which setting is the fastest
tuning.py             which settings were faster, and whether they change the losses
tuning_candidates.py  which settings are worth a trial
tuning_directory.py   the contents of a directory of `ddpprof tune`
"""
