"""More trainings with one fault each, written after ddpprof had been tuned to those of `faults.py`.

torchrun --nproc-per-node 3 further_faults.py database_locked --rank 1
"""
# ruff: noqa: B007, PTH123, SIM115

import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from faults import FOR_EVER, MIB, STEP, main, mlp, note_time
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class Decoded(Dataset):
    """Samples that are decoded under a lock, some of them slowly."""

    def __init__(self, lock=None, seconds=0, slow_from=0):
        self.lock, self.seconds, self.slow_from = lock or nullcontext(), seconds, slow_from

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        with self.lock:
            if index >= self.slow_from:
                time.sleep(self.seconds)
            return torch.randn(64)


class Checkpointed(nn.Module):
    """A model whose block may be used twice, and is computed again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x, times=1):
        hidden = self.first(x)
        for _ in range(times):
            hidden = checkpoint(self.block, hidden, use_reentrant=True)
        return self.last(hidden)


# Collectives that not all ranks call, or not in the same way


def gather_to_other_rank(job):
    for step in job.steps():
        if step % 20 == 0:
            destination = job.rank if job.strikes(step) and not job.fixed else 0
            pieces = [torch.ones(3) for _ in range(job.world)] if job.rank == destination else None
            dist.gather(torch.ones(3), pieces, dst=destination)  # FAULT


def experts_disagree(job):
    """A rank sends more tokens to the experts of the other ranks than these expect."""
    for step in job.steps():
        if step % 20 == 0:
            rows = job.world * (3 if job.strikes(step) and not job.fixed else 2)
            dist.all_to_all_single(torch.empty(rows), torch.ones(rows))  # FAULT


def exchange_without_peer(job):
    """Each rank sends to the next one, and one rank leaves it out."""
    for step in job.steps():
        if step % 20 == 0 and (not job.strikes(step) or job.fixed):
            sends = dist.P2POp(dist.isend, torch.ones(4), job.next_rank)
            receives = dist.P2POp(dist.irecv, torch.ones(4), (job.rank - 1) % job.world)
            for work in dist.batch_isend_irecv([sends, receives]):
                work.wait()  # FAULT


def hook_without_reduction(job):
    """A comm hook returns a future that nobody completes."""

    def reduce(_state, bucket):
        if job.strikes(now) and not job.fixed:
            return torch.futures.Future()
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda reduced: reduced.value()[0])

    job.wrap().register_comm_hook(None, reduce)
    for now in job.steps():
        pass


def accumulates_on_one_rank(job):
    """A rank counts its batches differently, so it accumulates where the others reduce their gradients."""
    job.wrap()
    for step in range(120):
        with job.ddp.no_sync() if job.strikes(step) and not job.fixed else nullcontext():
            job.train()
    dist.barrier()


def models_in_other_order(job):
    """As in a GAN with two models, of which a rank trains the second one first."""
    models = [DDP(nn.Linear(64, 8)), DDP(mlp())]
    for step in range(100 if job.fixed else 20000):
        for model in reversed(models) if job.strikes(step) and not job.fixed else models:
            model(torch.randn(32, 64)).sum().backward()  # FAULT
        time.sleep(0.01)
    dist.barrier()


def sharded_optimizer_saved_alone(job):
    job.optimizer = ZeroRedundancyOptimizer(job.wrap().parameters(), torch.optim.SGD, lr=1e-3)
    for step in job.steps():
        if job.strikes(step) or (job.fixed and step == STEP):
            job.optimizer.consolidate_state_dict(to=0 if job.fixed else job.rank)  # FAULT


def distributed_save_alone(job):
    for step in job.steps():
        if job.strikes(step) or (job.fixed and step == STEP):
            dcp.save({"model": job.ddp.state_dict()}, checkpoint_id="checkpoint")  # FAULT


# A rank that waits in the script's own code


def trains_in_thread(job):
    def train():
        for step in job.steps():
            if job.strikes(step):
                time.sleep(FOR_EVER)  # FAULT

    with ThreadPoolExecutor(1) as pool:
        pool.submit(train).result()


def handler_deadlocks(job):
    """A handler of a signal wants a lock that the code it interrupts holds."""
    lock = threading.Lock()

    def save(*_):
        with lock:  # FAULT
            pass

    signal.signal(signal.SIGUSR1, save)
    for step in job.steps():
        if job.strikes(step):
            with lock:
                signal.raise_signal(signal.SIGUSR1)  # FAULT


def consumer_dies(job):
    for step in job.steps():
        if job.strikes(step):
            fork = multiprocessing.get_context("fork")
            samples = fork.Queue(1)
            consumer = fork.Process(target=os._exit, args=(1,))
            consumer.start()
            consumer.join()
            while True:
                samples.put(step)  # FAULT


def native_lock(job):
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    for step in job.steps():
        if job.strikes(step):
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)  # FAULT


def pool_waits_for_itself(job):
    pool = ThreadPoolExecutor(1)
    for step in job.steps():
        if job.strikes(step):
            pool.submit(lambda: pool.submit(len, "tokens").result()).result()  # FAULT


def collector_blocks(job):
    """The garbage collector runs a finalizer that waits for an answer."""

    class Connection:
        def __init__(self):
            self.itself, self.is_closed = self, threading.Event()

        def __del__(self):
            self.is_closed.wait()  # FAULT

    for step in job.steps():
        if job.strikes(step):
            Connection()
            job.held = [[] for _ in range(200_000)]


def database_locked(job):
    database = sqlite3.connect("metrics.db", timeout=FOR_EVER)
    database.execute("CREATE TABLE IF NOT EXISTS losses (loss)")
    database.commit()
    dist.barrier()
    for step in job.steps():
        if step == 2 and job.rank == 0 and not job.fixed:
            database.execute("BEGIN EXCLUSIVE")
        if job.strikes(step):
            database.execute("INSERT INTO losses VALUES (1)")  # FAULT
            database.commit()


UNINTERRUPTIBLE = """
#include <unistd.h>
void read_from_lost_server(void) { if (vfork() == 0) { pause(); _exit(0); } }
"""


def storage_hangs(job):
    """The kernel does not return, as from a file of a server that is gone."""
    if job.is_culprit:
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", "lost.so"], input=UNINTERRUPTIBLE, text=True, check=True
        )
    for step in job.steps():
        if job.strikes(step):
            ctypes.CDLL("./lost.so").read_from_lost_server()  # FAULT


# Processes that are held, slowed down or do not exit


def all_ranks_stopped(job):
    for step in job.steps():
        if step == STEP:
            note_time()
            os.kill(os.getpid(), signal.SIGSTOP)


def worker_deadlocks(job):
    """A worker is forked while a thread holds a lock, which nobody releases in the worker."""
    lock = threading.Lock()
    for step in job.steps():
        if step % 20 == 0:
            with lock if job.strikes(step) else nullcontext():
                batches = iter(DataLoader(Decoded(lock), num_workers=1))
        next(batches)


def thread_outlives_training(job):
    for _ in job.steps(100):
        pass
    dist.destroy_process_group()
    if job.is_culprit:
        note_time()
        is_uploaded = threading.Event()
        threading.Thread(target=is_uploaded.wait).start()
        if job.fixed:
            is_uploaded.set()


def loader_gets_slow(job):
    slow_from = 400 if job.is_culprit else 1_000_000
    batches = iter(DataLoader(Decoded(seconds=0.12, slow_from=slow_from)))
    for step in job.steps():
        if job.is_culprit and step == 400:
            note_time()
        next(batches)


# Jobs that fail


def destroys_group_early(job):
    """A rank is done, takes the process group down, and goes on without the others."""
    for step in job.steps():
        if job.strikes(step):
            dist.destroy_process_group()
            time.sleep(FOR_EVER)  # FAULT


def file_truncated(job):
    """A file of data is written anew while it is mapped into memory."""
    samples = np.memmap(f"samples-{job.rank}", np.uint8, "w+", shape=MIB)
    for step in job.steps():
        if job.strikes(step):
            os.truncate(f"samples-{job.rank}", 0)
        samples.sum()


def too_many_files(job):
    held = []
    for step in job.steps():
        if job.strikes(step):
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
            while True:
                held.append(open("/dev/null"))  # FAULT


def fails_in_every_attempt(job):
    for step in job.steps():
        assert not job.strikes(step), "the numbers of labels and of logits differ"  # FAULT


def block_used_twice(job):
    job.wrap(Checkpointed())
    for step in range(100):
        job.train(2 if job.strikes(step) else 1)


def interrupted(job):
    for step in job.steps():
        if job.strikes(step):
            signal.raise_signal(signal.SIGINT)  # FAULT


# Faults that were written when ddpprof had been mended for all others


class Synchronized(nn.Module):
    """A model whose forward averages its input over ranks, unless it is told not to."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 8)

    def forward(self, x, is_small=False):
        if not is_small:
            dist.all_reduce(x)  # FAULT
        return self.last(x)


def forward_without_average(job):
    """The forward averages over ranks, unless the batch is small."""
    job.wrap(Synchronized())
    for step in range(100 if job.fixed else 20000):
        is_small = job.strikes(step) and not job.fixed
        job.train(is_small)
    dist.barrier()


def another_module_wrapped(job):
    for step in job.steps():
        if job.strikes(step) or (job.fixed and step == STEP):
            DDP(nn.Linear(64, 8))  # FAULT


def reduces_other_amount(job):
    for step in job.steps():
        if step % 20 == 0:
            num_classes = 4 if job.strikes(step) and not job.fixed else 3
            dist.all_reduce(torch.ones(num_classes))  # FAULT


def awaits_flag_of_other_rank(job):
    """Rank 0 would write it after its next step, for which it needs this rank."""
    for step in job.steps():
        while job.strikes(step) and not os.path.exists("vocabulary-is-ready"):  # noqa: PTH110
            time.sleep(0.2)  # FAULT


def awaits_connection(job):
    server = socket.create_server(("127.0.0.1", 0))
    for step in job.steps():
        if job.strikes(step):
            server.accept()  # FAULT


MODULE = """
import threading
looks = threading.Thread(target=lambda: __import__("registry").looks)
looks.start()
looks.join()
"""


def import_deadlocks(job):
    """A module waits, while it is imported, for a thread that imports it."""
    with open(f"{os.getcwd()}/registry.py", "w") as file:  # noqa: PTH109
        file.write(MODULE)
    sys.path.append(os.getcwd())  # noqa: PTH109
    for step in job.steps():
        if job.strikes(step):
            __import__("registry")


def library_aborts(job):
    for step in job.steps():
        if job.strikes(step):
            ctypes.CDLL(None).abort()


def alarm_rings(job):
    for step in job.steps():
        if job.strikes(step):
            signal.alarm(1)


class Broken(Decoded):
    """Samples of which one cannot be read, or not in time."""

    def __init__(self, raises_at=None, stalls_at=None):
        super().__init__()
        self.raises_at, self.stalls_at = raises_at, stalls_at

    def __getitem__(self, index):
        if index == self.raises_at:
            raise ValueError("the image is truncated")
        if index == self.stalls_at:
            time.sleep(FOR_EVER)
        return super().__getitem__(index)


def worker_raises(job):
    batches = iter(DataLoader(Broken(raises_at=STEP if job.is_culprit else None), num_workers=1))
    for step in job.steps():
        job.strikes(step)
        next(batches)  # FAULT


def worker_times_out(job):
    batches = iter(DataLoader(Broken(stalls_at=STEP if job.is_culprit else None), num_workers=1, timeout=4))
    for step in job.steps():
        job.strikes(step)
        next(batches)  # FAULT


if __name__ == "__main__":
    main()
