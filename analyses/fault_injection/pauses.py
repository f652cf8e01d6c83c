"""A training that pauses on purpose, again and again, as jobs do. It knows nothing of ddpprof.

    torchrun --nproc-per-node 2 pauses.py --pauses 20 --seed 1         # kinds of `MIXED`, drawn at random
    torchrun --nproc-per-node 2 pauses.py --pauses 2 --only slow_batch

A line on stdout tells of each pause. For the pause ``sleep`` the machine must be put to sleep from outside.
"""

import argparse
import copy
import fcntl
import gc
import gzip
import hashlib
import io
import multiprocessing
import os
import pdb  # noqa: T100 (a pause)
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS_BETWEEN = 40
MIXED = ("save", "evaluation", "own_evaluation", "first_batch", "debugger", "sleep")
MIB = 2**20


class Slow(Dataset):
    """One sample takes long: the first, as if files had to be opened, or another, as if it had to be decoded."""

    def __init__(self, seconds=0, at=0):
        self.seconds, self.at = seconds, at

    def __len__(self):
        return 16 * STEPS_BETWEEN

    def __getitem__(self, index):
        if index == self.at:
            (time.sleep if index == 0 else compute)(self.seconds)
        return torch.randn(64)


class SlowToSave:
    """A part of a checkpoint that takes long to write."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        time.sleep(self.seconds)
        return (SlowToSave, (0,))


class SlowForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
        self.seconds = 0

    def forward(self, x):
        time.sleep(self.seconds)
        return self.layers(x)


def save(_model, seconds):
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": SlowToSave(seconds)}, f"{folder}/checkpoint.pt")


def evaluation(model, seconds):
    if dist.get_rank() == 0:
        model.module.seconds = seconds / 4
        with torch.no_grad():
            for _ in range(4):
                model(torch.randn(8, 64))
        model.module.seconds = 0


def own_evaluation(model, seconds):
    if dist.get_rank() == 0:
        end = time.monotonic() + seconds
        with torch.no_grad():
            while time.monotonic() < end:
                model.module.layers(torch.randn(64, 64))


def debugger(_model, seconds):
    """A developer looks at variables, and lets the job go on."""
    if dist.get_rank() == 0:
        read, write = os.pipe()

        def developer():
            time.sleep(seconds)
            os.write(write, b"continue\n")

        threading.Thread(target=developer).start()
        pdb.Pdb(stdin=os.fdopen(read), stdout=io.StringIO(), nosigint=True).set_trace()


def sleep(_model, seconds):
    if dist.get_rank() == 0:
        print(f"sleep now for {seconds}", flush=True)


# Waiting for others outside the job


def server(answer):
    """Start a server on this machine, in a thread; return a connection to it."""
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: answer(listening.accept()[0]), daemon=True).start()
    return socket.create_connection(listening.getsockname())


def ask_server(seconds):
    def answer(connection):
        connection.recv(100)
        time.sleep(seconds)
        connection.sendall(b"done")
        connection.close()

    with server(answer) as connection:
        connection.sendall(b"simulate")
        while connection.recv(100):
            pass


def simulator_server(_model, seconds):
    if dist.get_rank() == 0:
        ask_server(seconds)


def simulator_program(_model, seconds):
    if dist.get_rank() == 0:
        subprocess.run(["sleep", str(seconds)], check=True)


def awaits_file(_model, seconds):
    """Another job writes a file."""
    if dist.get_rank() == 0:
        shard = Path("shard")
        threading.Timer(seconds, shard.touch).start()
        while not shard.exists():
            time.sleep(0.5)
        shard.unlink()


def sleeps_on_all_ranks(_model, seconds):
    """A service allows only so many requests."""
    time.sleep(min(seconds, 9))


# Reading and writing slowly


def upload(seconds):
    def take(connection):
        while connection.recv(65536):
            time.sleep(0.006)  # some 10 MB/s

    with server(take) as connection:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(bytes(MIB))


def checkpoint_upload_rank0(_model, seconds):
    if dist.get_rank() == 0:
        upload(2 * seconds)
    dist.barrier()


def download_at_start(_model, seconds):
    def send(connection):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(bytes(65536))
            time.sleep(0.01)
        connection.close()

    if dist.get_rank() == 0:
        with server(send) as connection:
            while connection.recv(MIB):
                pass
    dist.barrier()


def slow_pipe(seconds, reads):
    """Return a file that takes so many seconds to be written or, with `reads`, to be read."""
    read, write = os.pipe()

    def move():
        for _ in range(20):
            time.sleep(seconds / 20)
            if reads:
                os.write(write, bytes(MIB // 4))
            else:
                os.read(read, MIB // 4)
        if reads:
            os.close(write)
        else:
            while os.read(read, MIB):
                pass

    threading.Thread(target=move, daemon=True).start()
    return os.fdopen(read, "rb", 0) if reads else os.fdopen(write, "wb", 0)


def save_to_slow_disk(_model, seconds):
    if dist.get_rank() == 0:
        with slow_pipe(seconds, reads=False) as file:
            torch.save({"model": torch.zeros(MIB)}, file)


def awaits_saving_thread(_model, seconds):
    """The last checkpoint is still being written as the next one is due."""
    if dist.get_rank() == 0:
        file = slow_pipe(seconds, reads=False)
        saves = threading.Thread(target=torch.save, args=({"model": torch.zeros(MIB)}, file))
        saves.start()
        saves.join()
        file.close()


def loads_slowly(_model, seconds):
    if dist.get_rank() == 0:
        with slow_pipe(seconds, reads=True) as file:
            while file.read(MIB):
                pass


# Computing


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        hashlib.sha256(bytes(4 * MIB)).hexdigest()


def process_pool(_model, seconds):
    if dist.get_rank() == 0:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(compute, [seconds] * 2)


def thread_computes(_model, seconds):
    if dist.get_rank() == 0:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(compute, seconds).result()


def reads_program_output(_model, seconds):
    """A tokeniser, whose output is read."""
    if dist.get_rank() == 0:
        program = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE) as process:
            process.stdout.read()


def garbage(_model, seconds):
    if dist.get_rank() == 0:
        held = [[index] for index in range(2_000_000)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            gc.collect()
        held.clear()


def accumulates_long(model, seconds):
    """One step has very many backward passes."""
    end = time.monotonic() + seconds
    with model.no_sync():
        while time.monotonic() < end:
            model(torch.randn(64, 64)).square().mean().backward()


def validation_soon(model, seconds):
    """All ranks validate, one of them for longer."""
    model.eval()
    with torch.no_grad():
        end = time.monotonic() + seconds * (2 if dist.get_rank() == 0 else 0.7)
        while time.monotonic() < end:
            model.module(torch.randn(32, 64))
            time.sleep(0.02)
        dist.all_reduce(torch.ones(2))
    model.train()


# Pauses that were set aside second


HEAVY = """
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
int main() { std::cout << std::regex_replace(std::string("a"), std::regex("a"), "b"); }
"""


def compiles_extension(_model, seconds):
    """As torch.utils.cpp_extension does: the first rank compiles under a lock, and the others wait for it."""
    end = time.monotonic() + seconds
    if dist.get_rank() == 0:
        Path("build").unlink(missing_ok=True)
    dist.barrier()
    if dist.get_rank() != 0:
        time.sleep(0.5)
    with open("lock", "w") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        while not Path("build").exists() and time.monotonic() < end:
            subprocess.run(["c++", "-x", "c++", "-O2", "-", "-o", "extension"], input=HEAVY, text=True, check=True)
        Path("build").touch()


def copies_data(_model, seconds):
    if dist.get_rank() == 0:
        shards = "for i in $(seq 1000); do head -c 200000 /dev/zero > shard-$i; sleep 0.05; done"
        subprocess.run(["timeout", str(seconds), "sh", "-c", shards], check=False)
    dist.barrier()


def long_inference(model, seconds):
    """One forward of the module takes very long, and the others are in a barrier."""
    if dist.get_rank() == 0:
        model.module.eval()
        end = time.monotonic() + seconds
        with torch.inference_mode():
            x = torch.randn(512, 512)
            while time.monotonic() < end:
                x = torch.relu(x @ x / 512)
        model.module.train()
    dist.barrier()


def finds_learning_rate(model, seconds):
    """The first rank trains a copy of the model, and tells the others what it found."""
    found = torch.zeros(1)
    if dist.get_rank() == 0:
        trial = copy.deepcopy(model.module)
        optimizer = torch.optim.SGD(trial.parameters(), lr=1e-4)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            optimizer.zero_grad()
            trial(torch.randn(512, 64)).square().mean().backward()
            optimizer.step()
    dist.broadcast(found, src=0)


def compiles_later(_model, _seconds):
    """A part of the training is compiled only now, by the compiler for C++, and anew for each pause."""
    torch._dynamo.reset()
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(6)))
    compiled = torch.compile(layers)
    compiled(torch.randn(32, 64)).sum().backward()


def writes_shards(_model, seconds):
    if dist.get_rank() == 0:
        end = time.monotonic() + seconds
        with open("shards", "wb") as shards:  # noqa: PTH123
            while time.monotonic() < end:
                shards.seek(0)
                shards.write(os.urandom(MIB))
                os.fsync(shards.fileno())
    dist.barrier()


def monitored_barrier_waits(_model, seconds):
    """The others wait in a barrier that says who has not come, with time enough."""
    if dist.get_rank() == 0:
        compute(seconds)
    dist.monitored_barrier(timeout=timedelta(minutes=10))


def distributed_save(model, seconds):
    """All ranks save together, and what one of them has takes long."""
    part = SlowToSave(seconds if dist.get_rank() == 0 else 0)
    dcp.save({"model": model.state_dict(), f"part of rank {dist.get_rank()}": part}, checkpoint_id="checkpoint")


def workers_start_slowly(_model, seconds):
    """Each worker opens an archive before it reads."""
    loader = DataLoader(Slow(), batch_size=16, num_workers=1, worker_init_fn=lambda _: compute(seconds))
    for _ in loader:
        pass


# Pauses that were set aside third


def server_starts(_model, seconds):
    """A service that another program starts takes a while to accept connections."""
    if dist.get_rank() == 0:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            address = unused.getsockname()
        servers = []
        threading.Timer(seconds, lambda: servers.append(socket.create_server(address))).start()
        while not accepts(address):
            time.sleep(1)


def accepts(address):
    try:
        socket.create_connection(address).close()
    except OSError:
        return False
    return True


def decompresses(_model, seconds):
    if dist.get_rank() == 0:
        content, end = gzip.compress(os.urandom(MIB)), time.monotonic() + seconds
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < end:
                file.seek(0)
                file.write(gzip.decompress(content))
    dist.barrier()


def lock_of_another_job(_model, seconds):
    """Another job on the machine builds what both need."""
    if dist.get_rank() == 0:
        with open("cache.lock", "w") as lock:  # noqa: PTH123
            holds = subprocess.Popen(["flock", "cache.lock", "sleep", str(seconds)])
            time.sleep(0.5)
            fcntl.flock(lock, fcntl.LOCK_EX)
            holds.wait()


def restarted(_model, _seconds):
    """A rank fails after a while, and torchrun starts the job anew."""
    if dist.get_rank() == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("a machine was lost")


PAUSES = {
    pause.__name__: pause
    for pause in (
        *(save, evaluation, own_evaluation, debugger, sleep),
        *(simulator_server, simulator_program, awaits_file, sleeps_on_all_ranks),
        *(checkpoint_upload_rank0, save_to_slow_disk, awaits_saving_thread, loads_slowly),
        *(process_pool, thread_computes, reads_program_output, garbage, accumulates_long, validation_soon, restarted),
        *(compiles_extension, copies_data, long_inference, finds_learning_rate, compiles_later, writes_shards),
        *(monitored_barrier_waits, distributed_save, workers_start_slowly),
        *(server_starts, decompresses, lock_of_another_job),
    )
}
"""pauses between two epochs"""
SLOW_SAMPLES = {"first_batch": 0, "slow_batch": 16 * STEPS_BETWEEN // 2}


def train(model, optimizer, kind, seconds):
    slow_at = SLOW_SAMPLES.get(kind)
    data = Slow() if slow_at is None else Slow(seconds, slow_at)
    for x in DataLoader(data, batch_size=16, num_workers=0 if slow_at is None else 1):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pauses", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="pause of this kind; without it, kinds are drawn")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    draw = random.Random(args.seed)  # the same on all ranks
    if args.only == "download_at_start":
        tell(args.only, 12)
        download_at_start(None, 12)
    model = DDP(SlowForward())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if args.only is not None:
        train(model, optimizer, None, 0)
    for _ in range(args.pauses):
        kind = args.only or draw.choice(MIXED)
        seconds = draw.uniform(7, 32 if kind == "save" else 14)
        if kind in PAUSES or kind in SLOW_SAMPLES:
            tell(kind, seconds)
        PAUSES.get(kind, lambda *_: None)(model, seconds)
        train(model, optimizer, kind, seconds)
    print("all pauses are over", flush=True)
    sys.stdout.flush()
    time.sleep(0.2)
    dist.destroy_process_group()
    if args.only == "registry_after_training" and int(os.environ["RANK"]) == 0:
        print(f"pause {args.only} 15", flush=True)
        ask_server(15)


def tell(kind, seconds):
    if dist.get_rank() == 0:
        print(f"pause {kind} {seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
