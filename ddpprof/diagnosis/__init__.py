"""Jobs that hang or have failed: which rank holds them up, where, and why.

examination.py         what is wrong with the job of a run, for the launcher's watch and for ``ddpprof diagnose``
hang_detector.py       does a job hang? It learns how long steps usually take, and pauses on purpose are told apart
processes.py           what the system tells of a rank's process
places.py              where a training thread stands, from its stack
evidence.py            everything that is known of each rank
position.py            what a rank does, as far as other ranks are concerned: it waits for them, or they wait for it
odd_calls.py           among ranks that all wait, who called another collective than the rest, or left one out
failed_collectives.py  jobs that died because collectives met that do not belong together
verdicts.py            verdicts, made of one rank to blame and of those that wait
stacks.py              where all threads of the ranks stand, as py-spy reads it
flight_dumps.py        dumps of torch's flight recorder: who called fewer collectives, or others
judge.py               from the evidence to a verdict, by rules
"""
