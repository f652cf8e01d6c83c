"""Whole runs: readers of the pulses that ranks leave, and verdicts on them. Nothing in here imports torch.

What a job does now:
pulse_files.py     the pulses of a run, read from memory while ranks live, else from the run directory
verdict_files.py   ``hang.json`` and ``slowdowns.json``: what the watcher of a run has found so far
rank_now.py        what one rank does at this moment, and how it stands
waiting.py         who waits for whom
overview.py        what a running job does: rates, percentiles, the last minutes
metrics.py         metrics of a running job, by the conventions of Prometheus and OpenTelemetry
kernel_waits.py    for what a thread sleeps in the kernel
requests.py        requests to a running job, through the socket in its run directory

Slow-downs:
job_steps.py       the steps that all ranks have in common, and which of them are longer for a known reason
step_noise.py      how much steady steps differ, and where one level gives way to another
level_shifts.py    since which step steps take longer, and by how much, found while they come
causes.py          whose time a slow-down is, and of what
slowdowns.py       the slow-downs of a job, with their causes, found while it runs
past_slowdowns.py  the slow-downs of a whole run, after the fact
pauses.py          what checkpoints, evaluation, new epochs and recording cost: longer steps that are no slow-downs

After its end:
whole_run.py       what became of a whole training: pulses in few numbers
history.py         how the length of steps developed over a whole training
"""
