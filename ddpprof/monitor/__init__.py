"""Whole runs: readers of the pulses that ranks leave, and verdicts on them. Nothing in here imports torch.

pulse_files.py   the pulses of a run, read from memory while ranks live, else from the run directory
verdict_files.py ``hang.json`` and ``slowdowns.json``: what the watcher of a run has found so far
metrics.py       metrics of a running job, by the conventions of Prometheus and OpenTelemetry
requests.py      requests to a running job, through the socket in its run directory
history.py       How did the length of steps develop over a whole training?
overview.py      What does a running job do?
rank_now.py      What does one rank do at this moment, and how does it stand?
waiting.py       Who waits for whom?
whole_run.py     What became of a whole training: pulses in few numbers
job_steps.py      the steps that all ranks have in common, and which of them are longer for a known reason
step_noise.py     how much steady steps differ, and where one level gives way to another
level_shifts.py   since which step steps take longer, and by how much, found while they come
causes.py         whose time a slow-down is, and of what
slowdowns.py      the slow-downs of a job, with their causes, found while it runs
past_slowdowns.py the slow-downs of a whole run, after the fact
pauses.py         what checkpoints, evaluation, new epochs and recording cost: longer steps that are no slow-downs
"""
