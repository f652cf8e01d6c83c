"""Recording, inside or around the training process. The only part of ddpprof that imports torch.

launch.py      around the job: starts it with ddpprof injected, passes signals and exit code through
inject/        the folder that `launch` puts on PYTHONPATH; its sitecustomize.py waits for torch's DDP module
patches.py     the few methods of torch that are wrapped, and nothing else
session.py     what happens in one training process, from the first DDP forward to the end
schedule.py    which step is skipped, timed, recorded, profiled
steps.py       where a training step ends
buckets.py     when each gradient bucket is launched and finished
facts.py       what DDP, its buckets, data loaders and checkpoints look like
agreement.py   all ranks record, or none
output.py      files of one rank
"""
