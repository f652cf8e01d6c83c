"""Recording, inside or around the training process. The only part of ddpprof that imports torch.

launch.py        around the job: starts it with ddpprof injected, passes signals and exit code through
torchrun.py      torchrun's options, which `ddpprof trace` passes on
settings.py      what to record, and how it reaches the training processes
inject/          the folder that `launch` puts on PYTHONPATH; its sitecustomize.py waits for torch's DDP module
injected.py      what that sitecustomize calls
profile.py       `with ddpprof.profile(…)` in user code
patches.py       the few methods of torch that are wrapped, and nothing else
ddp_variants.py  DDP under other arguments, or without what it does, for trials

session.py       what happens in one training process, from the first DDP forward to the end
window.py        the recorded steps: their modes, the profiler over them, what is written
schedule.py      which step is skipped, timed, recorded, profiled
steps.py         where a training step ends
notes.py         what happens inside the current step
modules.py       one DDP module under observation
buckets.py       when each gradient bucket is launched and finished
facts.py         what DDP, its buckets and its parameters look like
feeding.py       which data loader feeds the training, and with which samples
samples.py       digests of a batch's samples
environment.py   device, backend, framework, checkpoints
framework.py     which framework made the DDP module
profiler.py      torch.profiler over the profiled steps

job.py           the process's rank, and its files in the run directory
agreement.py     all ranks record, or none
output.py        files of one rank
last_step.py     how many steps a rank has finished, for the case that it is killed
endings.py       in which words a rank says how it ended
exits.py         how torchrun and the launcher saw ranks end
attempts.py      torchrun's restarts: which runs are of one job
hooks.py         `ddpprof.hooks`: a comm hook that times buckets, without the profiler
"""
