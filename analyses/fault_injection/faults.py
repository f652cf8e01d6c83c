"""Trainings with one fault each, written as users write them. They know nothing of ddpprof.

    torchrun --nproc-per-node 3 faults.py file_lock --rank 1           # the fault happens in step 60 of rank 1
    torchrun --nproc-per-node 3 faults.py file_lock --rank 1 --fixed   # the same after the advice on it was followed

A line that a verdict may name ends with ``# FAULT``. What the verdict should say is in `planted_faults.py`. More
faults are in `further_faults.py`, which has the same options.
"""
# ruff: noqa: B007, B023, PLW1510, PTH123, SIM105, SIM115

import argparse
import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEP = 60
FOR_EVER = 1000
MIB = 2**20


class Job:
    """One rank of a training, and whether the fault happens on it."""

    def __init__(self, rank, world, culprit, fixed):
        self.rank, self.world, self.fixed = rank, world, fixed
        self.is_culprit = rank == culprit
        self.next_rank = (rank + 1) % world
        self.ddp = None

    def wrap(self, model=None, **options):
        self.ddp = DDP(model or mlp(), **options)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-3)
        return self.ddp

    def steps(self, num_steps=20000):
        """Yield the number of each step, and train it after the caller has done what comes before."""
        for step in range(100 if self.fixed else num_steps):
            yield step
            self.train()
        dist.barrier()

    def train(self, *options):
        if self.ddp is None:
            self.wrap()
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.ddp(torch.randn(32, 64), *options), torch.randn(32, 8)).backward()
        self.optimizer.step()
        time.sleep(0.01)

    def strikes(self, step):
        """Return whether the fault happens now, on this rank; note when."""
        if self.is_culprit and step == STEP:
            note_time()
            return True
        return False


@cache
def note_time():
    """Write when the fault happened, once."""
    Path("fault-time").write_text(str(time.time()), encoding="utf-8")


def mlp():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))


def control_group(controller):
    """Return a new control group of version 1, which `collect.py` removes by its name."""
    group = Path("/sys/fs/cgroup", controller, os.environ.get("FAULT_TAG", "fault-by-hand"))
    group.mkdir(exist_ok=True)
    return group


def enter(group):
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")


class Samples(Dataset):
    """Small samples, and from a certain one on large ones."""

    def __init__(self, large_from=None):
        self.large_from = large_from

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        is_large = self.large_from is not None and index >= self.large_from
        return torch.randn(8 * MIB if is_large else 64)


class Skipping(nn.Module):
    """A model one of whose layers may be left out."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x, skip=False):
        hidden = torch.relu(self.a(x))
        return self.c(hidden if skip else self.b(hidden))


class Attention(nn.Module):
    """A model whose layers are made in the given order."""

    def __init__(self, names):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(64, 64))
        self.out = nn.Linear(64, 8)

    def forward(self, x):
        return self.out(torch.relu(self.query(x)) * self.key(x))


# Collectives that not all ranks call, or not in the same order


def one_rank_skips_barrier(job):
    for step in job.steps():
        if step % 20 == 0 and (not job.strikes(step) or job.fixed):
            dist.barrier()  # FAULT


def object_broadcast_skipped(job):
    for step in job.steps():
        if step % 20 == 0 and (not job.strikes(step) or job.fixed):
            dist.broadcast_object_list([step], src=0)  # FAULT


def error_swallowed(job):
    """An object that cannot be pickled keeps its rank out of the collective, and nobody sees the error."""
    for step in job.steps():
        if step % 20 == 0:
            mine = (lambda: step) if job.strikes(step) and not job.fixed else step
            try:
                dist.all_gather_object([None] * job.world, mine)  # FAULT
            except Exception:
                pass


def async_reduction_skipped(job):
    work = None
    for step in job.steps():
        if work is not None:
            work.wait()
        is_called = step % 20 == 0 and (not job.strikes(step) or job.fixed)
        work = dist.all_reduce(torch.ones(1), async_op=True) if is_called else None  # FAULT


def group_on_some_ranks(job):
    for step in job.steps():
        if step == STEP and (not job.strikes(step) or job.fixed):
            dist.new_group()  # FAULT


def groups_in_other_order(job):
    first, second = dist.new_group(), dist.new_group()
    if job.is_culprit and not job.fixed:
        first, second = second, first
    for step in job.steps():
        if step >= STEP:
            job.strikes(step)
            dist.all_reduce(torch.ones(4), group=first)  # FAULT
            dist.all_reduce(torch.ones(4), group=second)


def receives_alone(job):
    for step in job.steps():
        if step == STEP and job.fixed:
            dist.all_reduce(torch.ones(3))
        elif job.strikes(step):
            dist.recv(torch.ones(3), src=job.next_rank)  # FAULT


def sends_alone(job):
    for step in job.steps():
        if step == STEP and job.fixed:
            dist.all_reduce(torch.ones(3))
        elif job.strikes(step):
            dist.isend(torch.ones(4 * MIB), dst=job.next_rank).wait()  # FAULT


def collective_within_join(job):
    """`join` answers for DDP's own collectives only."""
    with job.wrap().join():
        for step in range(100 if job.fixed else 20000):
            if job.strikes(step):
                break
            if not job.fixed:
                dist.all_reduce(torch.ones(1))
            job.train()


def barrier_in_finally(job):
    try:
        for step in job.steps():
            if job.strikes(step):
                raise ValueError("label 7 out of range")  # FAULT
    finally:
        dist.barrier()  # FAULT


def early_stopping_one_rank(job):
    for step in job.steps():
        stops = job.strikes(step)
        if job.fixed:
            votes = torch.tensor(float(stops))
            dist.all_reduce(votes)
            stops = votes > 0
        if stops:
            break  # FAULT


def batch_skipped(job):
    """A rank that finds its batch bad runs no backward pass for it."""
    for step in range(120):
        if job.strikes(step) and not job.fixed:
            continue
        job.train()
    dist.barrier()


def backward_twice(job):
    for step in job.steps(120):
        if job.strikes(step):
            job.train()


def evaluates_alone(job):
    """The forward of DDP broadcasts buffers, in an evaluation, too."""
    ddp = job.wrap(nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 8)))
    for _ in range(STEP):
        job.train()
    if job.strikes(STEP):
        ddp.eval()
        model = ddp.module if job.fixed else ddp
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(32, 64))  # FAULT
    dist.barrier()


# A rank that waits in the script's own code


def async_wait_all_ranks(job):
    for step in job.steps():
        if job.strikes(step):
            time.sleep(FOR_EVER)  # FAULT
        work = dist.all_reduce(torch.ones(3), async_op=True)
        work.wait()


def stuck_in_validation(job):
    if job.is_culprit:
        os.mkfifo("labels")
    for step in job.steps():
        if job.strikes(step):
            job.ddp.eval()
            with torch.no_grad():
                for _ in range(3):
                    job.ddp.module(torch.randn(32, 64))
                open("labels").read()  # FAULT
            job.ddp.train()


def awaits_input(job):
    for step in job.steps():
        if job.strikes(step):
            input("Overwrite the checkpoint? ")  # FAULT


def retries_for_ever(job):
    for step in job.steps():
        while job.strikes(step):
            try:
                socket.create_connection(("127.0.0.1", 9), timeout=1)  # FAULT
            except OSError:
                time.sleep(1)  # FAULT


def endless_loop(job):
    for step in job.steps():
        x = torch.ones(64)
        while job.strikes(step) and x.sum() > 0:  # FAULT
            x = x.abs()  # FAULT


def awaits_coroutine(job):
    async def results():
        await asyncio.Event().wait()

    for step in job.steps():
        if job.strikes(step):
            asyncio.run(results())  # FAULT


def silent_server(job):
    server = socket.create_server(("127.0.0.1", 0))
    for step in job.steps():
        if job.strikes(step):
            client = socket.create_connection(server.getsockname())
            client.sendall(b"GET /labels HTTP/1.0\r\n\r\n")
            client.recv(100)  # FAULT


def awaits_program(job):
    for step in job.steps():
        if job.strikes(step):
            subprocess.run(["sleep", str(FOR_EVER)])  # FAULT


def file_lock(job):
    lock = open("cache.lock", "w")
    if job.rank == 0 and not job.fixed:
        fcntl.flock(lock, fcntl.LOCK_EX)
    for step in job.steps():
        if job.strikes(step):
            fcntl.flock(lock, fcntl.LOCK_EX)  # FAULT


def forked_lock(job):
    """A process is forked while a lock is held, so in that process nobody will release it."""
    lock = threading.Lock()
    for step in job.steps():
        if job.strikes(step):
            with lock:
                child = multiprocessing.get_context("fork").Process(target=lock.acquire)
                child.start()
                child.join()  # FAULT


def pool_worker_dies(job):
    for step in job.steps():
        if job.strikes(step):
            with multiprocessing.get_context("fork").Pool(1) as pool:
                pool.map(os._exit, [1])  # FAULT


def thread_dies(job):
    def read(_results):
        raise ValueError("cannot read the shard")

    for step in job.steps():
        if job.strikes(step):
            results = queue.Queue()
            threading.Thread(target=read, args=(results,)).start()
            results.get()  # FAULT


def awaits_store_key(job):
    store = dist.distributed_c10d._get_default_store()
    for step in job.steps():
        if job.strikes(step):
            store.wait(["rank-7-is-ready"], timedelta(hours=1))  # FAULT


def log_pipe_full(job):
    _, log = os.pipe()
    for step in job.steps():
        while job.strikes(step):
            os.write(log, b"loss 0.5\n" * 500)  # FAULT


# Processes that are held, slowed down or do not exit


def frozen_cgroup(job):
    for step in job.steps():
        if job.strikes(step):
            group = control_group("freezer")
            enter(group)
            (group / "freezer.state").write_text("FROZEN", encoding="utf-8")


TRACER = """
import ctypes, os, sys, time
trace = ctypes.CDLL(None).ptrace
for thread in os.listdir(f"/proc/{sys.argv[1]}/task"):
    trace(16, int(thread), None, None)  # PTRACE_ATTACH
time.sleep(1000)
"""


def traced(job):
    for step in job.steps():
        if job.strikes(step):
            subprocess.Popen([sys.executable, "-I", "-S", "-c", TRACER, str(os.getpid())])


def cpu_quota_slow(job):
    for step in job.steps():
        if job.is_culprit and step == 400:
            note_time()
            group = control_group("cpu")
            (group / "cpu.cfs_quota_us").write_text("4000", encoding="utf-8")
            enter(group)


def worker_stopped(job):
    batches = iter(DataLoader(Samples(), num_workers=1))
    for step in job.steps():
        if job.strikes(step):
            os.kill(batches._workers[0].pid, signal.SIGSTOP)
        next(batches)  # FAULT


def does_not_exit(job):
    for _ in job.steps(100):
        pass
    dist.destroy_process_group()
    if job.is_culprit:
        note_time()
        results = multiprocessing.Queue()
        child = multiprocessing.Process(target=results.put, args=(bytes(MIB),))
        child.start()
        if job.fixed:
            results.get()
        child.join()  # FAULT


# Jobs that fail


def static_graph_changes(job):
    job.wrap(Skipping(), bucket_cap_mb=0.01, static_graph=not job.fixed, find_unused_parameters=job.fixed)
    for step in range(100):
        job.strikes(step)
        job.train(job.is_culprit and step >= STEP)


def fails_at_start(job):
    if job.is_culprit:
        note_time()
        open("data/train.bin")  # FAULT
    for _ in job.steps():
        pass


def hook_fails(job):
    def check(_gradient):
        if job.strikes(now):
            raise ValueError("the gradient is not finite")  # FAULT

    job.wrap().module[0].weight.register_hook(check)
    for now in job.steps():
        pass


def worker_killed(job):
    batches = iter(DataLoader(Samples(), num_workers=1))
    for step in job.steps():
        if job.strikes(step):
            os.kill(batches._workers[0].pid, signal.SIGKILL)
        next(batches)  # FAULT


def shared_memory_full(job):
    """It needs a small /dev/shm, which `collect.py` mounts for it."""
    batches = iter(DataLoader(Samples(STEP if job.is_culprit and not job.fixed else None), num_workers=1))
    for step in job.steps():
        job.strikes(step)
        next(batches)  # FAULT


def address_space_limit(job):
    held = []
    for step in job.steps():
        if job.strikes(step):
            in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
            resource.setrlimit(resource.RLIMIT_AS, (in_use + 200 * MIB,) * 2)
            while True:
                held.append(bytearray(50 * MIB))  # FAULT


def killed_for_memory(job):
    held = []
    for step in job.steps():
        if job.strikes(step):
            group = control_group("memory")
            (group / "memory.limit_in_bytes").write_text(str(150 * MIB), encoding="utf-8")
            enter(group)
            while True:
                held.append(bytearray(b"x") * (10 * MIB))


def cpu_time_limit(job):
    for step in job.steps():
        if job.strikes(step):
            used_s = int(sum(os.times()[:2]))
            resource.setrlimit(resource.RLIMIT_CPU, (used_s + 1, used_s + 60))


def disk_full(job):
    for step in job.steps():
        if job.strikes(step):
            torch.save(job.ddp.state_dict(), "/dev/full")  # FAULT


def terminated(job):
    for step in job.steps():
        if job.strikes(step):
            subprocess.run(["sh", "-c", f"kill -TERM {os.getpid()}"])


def exits_with_zero(job):
    for step in job.steps():
        if job.strikes(step):
            os._exit(0)


def segfault(job):
    for step in job.steps():
        if job.strikes(step):
            ctypes.string_at(0)


def monitored_barrier_expires(job):
    for step in job.steps():
        if step % 20 == 0:
            if job.strikes(step):
                time.sleep(FOR_EVER)  # FAULT
            dist.monitored_barrier(timeout=timedelta(seconds=4))


def group_times_out(job):
    job.wrap(process_group=dist.new_group(timeout=timedelta(seconds=4)))
    for step in job.steps():
        if job.strikes(step):
            time.sleep(FOR_EVER)  # FAULT


def hangs_after_restart(job):
    for step in job.steps():
        if job.strikes(step):
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                raise RuntimeError("the first attempt fails")
            time.sleep(FOR_EVER)  # FAULT


# Jobs that train on, and go wrong


def other_parameter_order(job):
    note_time()
    names = ("key", "query") if job.is_culprit and not job.fixed else ("query", "key")
    job.wrap(Attention(names))
    for _ in job.steps(300):
        pass


def lr_diverges_nan(job):
    note_time()
    torch.manual_seed(0)
    for step in job.steps(700):
        if job.is_culprit and step > 100:
            job.optimizer.param_groups[0]["lr"] = 1e-3 * 1.15 ** (step - 100)


# The network, which `collect.py` cuts


def packets_vanish(job):
    for _ in job.steps():
        pass


def run(rank, args):
    if args.stacks_after:
        import faulthandler

        faulthandler.dump_traceback_later(args.stacks_after, file=open(f"stacks-{rank}", "w"))
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo")
    job = Job(rank, dist.get_world_size(), args.rank, args.fixed)
    getattr(sys.modules["__main__"], args.fault)(job)
    if dist.is_initialized():
        time.sleep(0.2)
        dist.destroy_process_group()


def spawned(rank, args):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    run(rank, args)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("--rank", type=int, default=1, help="rank with the fault (%(default)s)")
    parser.add_argument("--fixed", action="store_true", help="as it is after the advice was followed")
    parser.add_argument("--launch", choices=("spawn", "processes"), help="start the ranks, instead of torchrun")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--stacks-after", type=float, help="write where the threads stand after so many seconds")
    args = parser.parse_args()
    if args.launch is None:
        run(int(os.environ["RANK"]), args)
        return
    os.environ.update(WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    if args.launch == "spawn":
        mp.spawn(spawned, (args,), args.ranks)
        return
    command = [sys.executable, *sys.argv[: sys.argv.index("--launch")]]
    numbers = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(args.ranks)]
    ranks = [subprocess.Popen(command, env={**os.environ, **number}) for number in numbers]
    sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    main()
