"""Experiments: the user's script run many times, in short trials that differ in what is asked about.

plan.py               what is to be run: variants of the job, and the trials of each
vary.py               `--vary` and `--set`: from words to changes of the job
conduct.py            runs the trials in turn, and goes on where an earlier attempt stopped
trials.py             what one trial gave
results.py            trials → result, by the kind of the experiment
overhead.py           what DDP costs; scaling.py: more ranks; sweep.py: other settings
tuning.py             which settings were faster, and whether they change the losses
tuning_candidates.py  which settings are worth a trial
tuning_directory.py   what lies in a directory of `ddpprof tune`
"""
