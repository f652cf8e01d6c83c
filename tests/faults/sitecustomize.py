"""Faults for the doctor to find. DDPPROF_TEST_FAULTS names some; each strikes when its module is imported.

A fault of training strikes in processes that ddpprof records, so that training without it stays as it is.
"""

import importlib.abc
import importlib.util
import os
import sys
import time

RECORDED = "DDPPROF_SETTINGS" in os.environ


def no_backends(distributed):
    distributed.is_backend_available = lambda _name: False


def blind_profiler(profiler):
    profiler.profile.events = lambda _self: []


def changed_training(_dynamo):
    """Parameters move, collectives are added, and the start of the profiler takes longer than ranks are patient."""
    import torch
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import profile

    def after(optimizer, _args, _kwargs):
        dist.all_reduce(torch.zeros(1))
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.add_(1e-6)

    register_optimizer_step_post_hook(after)
    start = profile.start_trace

    def slow_start(self):
        time.sleep(6.5)
        start(self)

    profile.start_trace = slow_start


FAULTS = {
    "no_backends": ("torch.distributed", no_backends),
    "blind_profiler": ("torch.profiler", blind_profiler),
    "changed_training": ("torch._dynamo", changed_training),  # imported once training begins
}


class StrikeAfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, target, fault):
        self.target, self.fault = target, fault

    def find_spec(self, name, _path=None, _target=None):
        if name != self.target:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_strike(module):
            execute(module)
            self.fault(module)

        spec.loader.exec_module = execute_and_strike
        return spec


for chosen in filter(None, os.environ.get("DDPPROF_TEST_FAULTS", "").split(",")):
    where, strike = FAULTS[chosen]
    if RECORDED or strike is not changed_training:
        sys.meta_path.insert(0, StrikeAfterImport(where, strike))
