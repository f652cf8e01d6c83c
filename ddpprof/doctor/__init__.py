"""`ddpprof doctor`: is this machine, with its installation, fit for recording, and does recording leave training alone?

check.py         a check: its questions, where it runs, and the form of its answers
examination.py   all checks in their order, and their results as one document that does not reveal who ran it
harmless.py      Does recording leave a training unchanged?
installation.py  checks of the installation: versions, torch's devices and backends, the profiler, and other profilers
machine.py       checks of the machine's resources: disk space, shared memory, clocks, cores and memory
network.py       Which network interfaces would gloo and NCCL use, and do they work?
training.py      execution of training scripts, with and without ddpprof, and reading of what they print
"""
