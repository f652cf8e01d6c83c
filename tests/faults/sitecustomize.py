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


def slow_check(machine):
    machine.check_clock = lambda _context: time.sleep(60)


def drifting_clock(machine):
    began = time.time_ns()
    honest = time.time_ns
    time.time_ns = lambda: honest() + (honest() - began) // 100


def changed_training(_ranks):
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


def wrong_times(profiler):
    """Profiled steps begin late, and something stays behind when the profiler has gone."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    begin, stop = profiler.StepProfiler.begin_step, profiler.StepProfiler.stop

    def late(self, number):
        time.sleep(0.1)
        begin(self, number)

    def leave_something(self, *args, **kwargs):
        result = stop(self, *args, **kwargs)
        register_optimizer_step_post_hook(lambda *_: time.sleep(0.1))
        return result

    profiler.StepProfiler.begin_step, profiler.StepProfiler.stop = late, leave_something


def lost_parts(breakdown):
    breakdown.Breakdown.step_ns = property(lambda self: self.forward_ns)


def unused_without_reason(facts):
    from msgspec import structs

    original = facts.module_facts

    def claims(*args):
        found = original(*args)
        return structs.replace(found, unused=(found.parameters[0].name,), buckets=found.buckets[::-1])

    facts.module_facts = claims


def lost_steps(steps):
    original, calls = steps.StepDetector.optimizer_stepped, []

    def sometimes(self, optimizer):
        calls.append(optimizer)
        return original(self, optimizer) and len(calls) % 7 != 0

    steps.StepDetector.optimizer_stepped = sometimes


def half_a_delay(_ranks):
    sleep = time.sleep
    time.sleep = lambda s: sleep(s / 2 if s == 0.1 else s)


def hasty_clock(_ranks):
    honest = time.perf_counter_ns
    time.perf_counter_ns = lambda: honest() * 6 // 5


def long_replay(replay):
    original = replay.replay
    replay.replay = lambda buckets, computed_ns, link: original(buckets, 2 * computed_ns, link)


def slow_netbench(netbench):
    end = netbench._HostClock.end

    def late(self):
        time.sleep(0.05)
        end(self)

    netbench._HostClock.end = late


def lingering_ranks(_ranks):
    """Ranks take a long time to end, whatever ends them."""
    import atexit
    import signal

    def linger(*_):
        time.sleep(20)
        os._exit(1)

    atexit.register(linger)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, linger)


FAULTS = {
    "no_backends": ("torch.distributed", no_backends),
    "blind_profiler": ("torch.profiler", blind_profiler),
    "slow_check": ("ddpprof.doctor.machine", slow_check),
    "drifting_clock": ("ddpprof.doctor.machine", drifting_clock),
    "changed_training": ("ranks", changed_training),
    "wrong_times": ("ddpprof.record.profiler", wrong_times),
    "lost_parts": ("ddpprof.measures.step.breakdown", lost_parts),
    "unused_without_reason": ("ddpprof.record.ddp_facts", unused_without_reason),
    "lost_steps": ("ddpprof.record.step_detector", lost_steps),
    "half_a_delay": ("ranks", half_a_delay),
    "hasty_clock": ("ranks", hasty_clock),
    "long_replay": ("ddpprof.predict.replay", long_replay),
    "slow_netbench": ("ddpprof.record.netbench", slow_netbench),
    "lingering_ranks": ("ranks", lingering_ranks),
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
    if RECORDED or where != "ranks":
        sys.meta_path.insert(0, StrikeAfterImport(where, strike))
