"""Comparison of the ranks of a job.

arrivals.py        Who comes late to a collective, and who waits for whom?
attempts.py        How long did each attempt of a restarted job last, how did it end, and what changed after it?
clock.py           What does each rank's clock show at the same instant?
failure.py         Did the job fail, which rank was first, and what followed from it?
gradient_use.py    Which parameters got no gradient on any rank?
host_cores.py      How many threads compute on each host, over all of its ranks, and on how many cores?
late_gradients.py  With which gradient does a slow rank first fall behind?
memory.py          How much memory does each rank hold, on its host and on every accelerator?
own_time.py        How much time does a rank spend on its own work before the others wait for it?
own_time_light.py  How much of a step is a rank's own work, if only the light recorder saw it?
random_numbers.py  Do all ranks draw the same random numbers?
replicas.py        Do the ranks still train one model?
same_samples.py    Do several ranks train on the same samples?
skipped_passes.py  Which rank skipped a backward pass that the others took part in?
stragglers.py      Which rank do the others wait for, how often, how long, in which part, and since when?
"""
