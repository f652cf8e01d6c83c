"""`ddpprof doctor`: is this machine, with its installation, fit for recording, and does ddpprof work correctly on it?

`catalogue` lists the checks. Each runs in processes of its own, within a time limit of its own, and says what was
expected and what was found. Training checks start scripts that know nothing of ddpprof, with and without it.

catalogue.py     all checks of the doctor, in the order in which they run
check.py         the definition of a check: its questions, where it runs, and the form of its answers
counted.py       Are steps and parameters counted as in the script, whatever the script does?
endings.py       Does a job that fails, or is told to end, end as soon in its profiled window as without ddpprof?
examination.py   all checks, and their results as one document that does not reveal who ran it
fabric.py        How fast is the network between the ranks, and what does it cost a step?
harmless.py      Does recording leave a training unchanged?
installation.py  checks of the installation: versions, torch's devices and backends, the profiler, and other profilers
machine.py       checks of the machine's resources: disk space, shared memory, clocks, cores and memory
network.py       Which network interfaces would gloo and NCCL use, and do they work?
one.py           entry point of the process for one check: ``python -m ddpprof.doctor.one MODULE FUNCTION CONTEXT``
processes.py     execution of each check in a process of its own, with a time limit, and without leftover processes
timed.py         Are times right?
training.py      execution of the doctor's training scripts, with and without ddpprof, and reading of what they print
"""
