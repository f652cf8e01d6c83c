"""Code shared by the scripts that time themselves: a model of equal layers, and a clock for steps."""

import itertools
import time

import torch
from torch import nn


def layers(width, depth):
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


class StepClock:
    """Times between ends of steps: by the host's clock on a CPU, and otherwise by events on the device."""

    def __init__(self, device):
        self._device = device
        self._ends = []

    def step_ends(self):
        if self._device.type == "cpu":
            self._ends.append(time.perf_counter_ns())
        else:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._ends.append(event)

    def steps_ns(self):
        pairs = itertools.pairwise(self._ends)
        if self._device.type == "cpu":
            return [after - before for before, after in pairs]
        torch.cuda.synchronize(self._device)
        return [round(before.elapsed_time(after) * 1e6) for before, after in pairs]
