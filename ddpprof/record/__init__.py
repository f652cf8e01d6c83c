"""Recording, inside or around the training process. Only this part of ddpprof imports torch.

launch.py        around the job: starts it with ddpprof injected, and passes on signals and exit code
torchrun.py      torchrun's options, which `ddpprof trace` passes on
settings.py      what to record, and how that reaches the training processes
inject/          the folder that `launch` puts on PYTHONPATH; its sitecustomize.py waits for torch's DDP module
injected.py      entry point for that sitecustomize
profile.py       `with ddpprof.profile(…)` in user code
patches.py       the methods of torch that are wrapped
ddp_variants.py  DDP with other arguments, or without its work, for trials

session.py       what happens in one training process, from the first DDP forward to the end
window.py        the recorded steps: their modes, their profiler, their output
schedule.py      which steps are skipped, timed, recorded, profiled
steps.py         where a training step ends
notes.py         events inside the current step
modules.py       one DDP module under observation
buckets.py       when each gradient bucket is launched and finished
facts.py         description of DDP, its buckets and its parameters
feeding.py       which data loader feeds the training, with which samples
samples.py       digests of a batch's samples
environment.py   device, backend, framework, checkpoints
framework.py     which framework made the DDP module
profiler.py      torch.profiler over the profiled steps

job.py           the process's rank, and its files in the run directory
agreement.py     all ranks record, or none does
output.py        files of one rank
last_step.py     number of steps that a rank has finished, in case it is killed
endings.py       a rank's words for how it ended
exits.py         how torchrun and the launcher saw ranks end
attempts.py      torchrun's restarts: which runs belong to one job
hooks.py         `ddpprof.hooks`: a comm hook that times buckets, without the profiler
"""
