"""Recording, inside or around the training process. Only this part of ddpprof imports torch.

launch.py        around the job: starts it with ddpprof injected, and passes on signals and exit code
torchrun.py      torchrun's options, which `ddpprof trace` passes on
settings.py      what to record, and how that reaches the training processes
inject/          the folder that `launch` puts on PYTHONPATH; its sitecustomize.py waits for torch's DDP module
injected.py      entry point for that sitecustomize
profile.py       `with ddpprof.profile(…)` in user code
patches.py       the methods of torch that are wrapped
optimizer_hooks.py  hooks around every ``Optimizer.step``
watching.py      the events of each step after the recorded ones
ddp_variants.py  DDP with other arguments, or without its work, for trials

recording.py     one recording: its steps, its files and its end; session.py: the events of torch that it is made of
window.py        the recorded steps: their modes, their profiler, their output
schedule.py      which steps are skipped, timed, recorded, profiled
step_detector.py  where a training step ends
notes.py         events inside the current step
modules.py       one DDP module under observation
buckets.py       when each gradient bucket is launched and finished
facts.py         description of DDP, its buckets and its parameters
feeding.py       which data loader feeds the training, with which samples
samples.py       digests of a batch's samples
random_states.py  digests of the states of torch's random-number generators
environment.py   device, backend, framework, checkpoints
flight_recorder.py  torch's flight recorder knows the bucket that was launched last, and an unusual collective
rank_conditions.py  collectives that the training script calls on some ranks only
profiler.py      torch.profiler over the profiled steps

job.py           the process's rank, and its files in the run directory
agreement.py     all ranks record, or none does
output.py        files of one rank
end_words.py       a rank's words for how it ended
exits.py         how torchrun, the launcher and the kernel (out of memory) saw ranks end
attempts.py      torchrun's restarts: which runs belong to one job
hooks.py         `ddpprof.hooks`: a comm hook that times buckets, without the profiler
accumulated.py      Which parameters got a gradient in a backward pass?
baseline.py         Steps without gradient communication: every forward in them runs as if under ``ddp.no_sync()``
bounds.py           Bounds on what the profiler collects while no step ends
boards.py           Boards on which ranks leave notes for each other, to agree on a capture
captures.py         Captures: the ranks of a running job agree to profile the same steps
control.py          A socket in the run directory on which this job takes requests of its own user
closures.py         Optimizer closures: they compute loss and gradients, which is not the optimizer's own work
data_parallel.py    The ``nn.DataParallel`` modules of a process that trains without DDP
device.py           Which devices does DDP train on, and when have they finished their work?
graphs.py           CUDA graphs: no step may end during a capture
hang_signals.py     Handling of signals while the training thread may hang in a call that never returns
live.py             Live scalars for TensorBoard: during training, the times of every step that the pulse has
losses.py           The losses of each step: the scalars on which the script calls ``backward``
machine.py          What does the machine give to this process, and what does it withhold?
memory.py           How much memory does this process hold?
netbench.py         How long do collectives take between the ranks of this job?
netbench_beside.py  How much of a concurrent computation do collectives cost?
netbench_job.py     Start of the ranks of `ddpprof netbench` with torchrun, and a one-line reason if they fail
parts.py            A part of the run: the files of one host's own ranks, if hosts share no file system
pulse.py            The pulse of this rank: notes of what it does, in memory that outlives it
no_pulse.py         A rank without a pulse notes only how many steps it has finished, in a file
pulse_rows.py       The rows of its steps, and summaries of many, made of these notes
pulse_keeper.py     A thread that has the rows made, copies the pulse into the run directory, and samples the machine
running_pulse.py    The pulse from its begin to its end, with its keeper, captures and live scalars
replicas.py         Do all ranks have the same model?
same_model.py       Do all ranks construct DDP with the same model and the same arguments?
rpc.py              Calls through ``torch.distributed.rpc`` in the current step
trace_file.py       One rank's trace on its way into the run directory, written during training
"""
