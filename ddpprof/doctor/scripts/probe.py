"""Print the devices and backends that PyTorch finds, and whether its profiler records a matrix product."""

import glob
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile


def profile_one_product():
    """Return the number of kernels (or, on a CPU, spans), the number of events, and the profiler's messages."""
    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu else "cpu"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]
    with tempfile.TemporaryFile() as said, StderrTo(said):
        matrix = torch.ones(256, 256, device=device)
        with profile(activities=activities) as recorded:
            matrix @ matrix
            if has_gpu:
                torch.cuda.synchronize()
        said.seek(0)
        words = said.read().decode(errors="replace")
    events = recorded.events()
    if has_gpu:
        seen = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    else:
        seen = [event for event in events if event.name == "aten::mm"]
    return len(seen), len(events), " ".join(words.split())[-300:]


class StderrTo:
    """Redirects the file descriptor of stderr, because Kineto writes to it directly."""

    def __init__(self, file):
        self._file = file

    def __enter__(self):
        self._kept = os.dup(2)
        os.dup2(self._file.fileno(), 2)

    def __exit__(self, *_):
        sys.stderr.flush()
        os.dup2(self._kept, 2)


if __name__ == "__main__":
    profiled, num_events, said = profile_one_product()
    print(
        json.dumps(
            {
                "num_gpus": torch.cuda.device_count(),
                "num_gpu_files": len(glob.glob("/dev/nvidia[0-9]*")),
                "backends": [name for name in sys.argv[1:] if dist.is_available() and dist.is_backend_available(name)],
                "profiled": profiled,
                "num_events": num_events,
                "profiler_said": said,
            }
        )
    )
