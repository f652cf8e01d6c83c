"""Recording, inside or around the training process. Only this part imports torch, and trainings of `demo`, `doctor`.

The job, from its launch to the wrapped methods of torch:
launch.py           around the job: starts it with ddpprof injected, and passes on signals and exit code
group_signals.py    was a signal sent to the whole process group, or to this process alone?
torchrun.py         torchrun's options, which `ddpprof trace` passes on
one_rank.py         a trial's only rank, for which ddpprof sets the launcher's variables
attempts.py         torchrun's restarts: which runs belong to one job
settings.py         what to record, and how that reaches the training processes
inject/             the folder that `launch` puts on PYTHONPATH; its sitecustomize.py waits for torch's DDP module
injected.py         entry point for that sitecustomize
profile.py          `with ddpprof.profile(…)` in user code
hooks.py            `ddpprof.hooks`: a comm hook that times buckets, without the profiler
patches.py          the methods of torch that are wrapped
optimizer_hooks.py  hooks around every ``Optimizer.step``
framework_saves.py  methods by which frameworks write and delete checkpoints
ddp_variants.py     DDP with other arguments, or without its work, for trials

One recording, step by step:
recording.py        one recording: its steps, its files and its end
session.py          the events of torch that a recording is made of
step_detector.py    where a training step ends
window.py           the recorded steps: their modes, their profiler, their output
schedule.py         which steps are skipped, timed, recorded, profiled
baseline.py         steps without gradient communication: every forward in them runs as if under ``ddp.no_sync()``
profiler.py         torch.profiler over the profiled steps
bounds.py           bounds on what the profiler collects while no step ends
graphs.py           CUDA graphs: no step may end during a capture
watching.py         the events of each step after the recorded ones

What is noted of a step, and of the job:
notes.py            events inside the current step
modules.py          one DDP module under observation
ddp_facts.py        description of DDP, its buckets and its parameters, and of ``nn.DataParallel``
reducer.py          which parameters DDP averages: those that need gradients when it builds its reducer
buckets.py          when each gradient bucket is launched and finished
unaveraged.py       parameters that are trained although no DDP module averages them
replicas.py         values that tell whether all ranks have the same model
same_model.py       whether all ranks construct DDP with the same model and the same arguments
rpc.py              calls through ``torch.distributed.rpc`` in the current step
feeding.py          which data loader feeds the training, with which samples
samples.py          digests of a batch's samples
random_states.py    digests of the states of random-number generators: torch's, NumPy's and Python's
random_draws.py     whether a dataset draws random numbers in the workers of its loader
losses.py           the losses of each step: the scalars on which the script calls ``backward``
environment.py      device, backend, framework, cores, checkpoints, and whether torch.compile has compiled anything
device.py           which devices DDP trains on, and when they have finished their work
memory.py           how much memory this process holds
rank_conditions.py  collectives that the training script calls on some ranks only
flight_recorder.py  what torch's flight recorder knows: the bucket that was launched last, and an unusual collective
overdue_facts.py    what only this process knows of a step that takes far too long

The pulse of a whole run:
pulse.py            the pulse of this rank: notes of what it does, in memory that outlives it; or none
pulse_rows.py       the rows of its steps, and summaries of many, made of these notes
pulse_keeper.py     a thread that has the rows made, copies the pulse into the run directory, and samples the machine
machine.py          what the machine gives to this process, and what it withholds
running_pulse.py    the pulse from beginning to end, with what is done several times a second: captures, warnings
captures.py         captures: the ranks of a running job agree to profile the same steps
boards.py           boards on which ranks leave notes for each other, to agree on a capture
control.py          a socket in the run directory on which this job takes requests of its own user
live.py             live scalars for TensorBoard: during training, the times of every step that the pulse has

Files, and how a rank ends:
job.py              the process's rank, and its files in the run directory
agreement.py        all ranks record, or none does
run_directory.py    the run directory, and the part of it on a host that does not see it
output.py           files of one rank
trace_file.py       one rank's trace on its way into the run directory, written during training
end_words.py        a rank's words for how it ended
exits.py            how torchrun, the launcher and the kernel (out of memory) saw ranks end
standby.py          threads that are started while the script trains, for work at the end of the process
hang_signals.py     handling of signals while the training thread may hang in a call that never returns

The network:
netbench.py         how long collectives take between the ranks of this job
netbench_beside.py  how much of a concurrent computation collectives cost
netbench_job.py     start of the ranks of `ddpprof netbench` with torchrun, and a one-line reason if they fail
"""
