"""Rules about the device: computation slowed by communication, and an accelerator that waits for its host."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.change import environment_change
from ddpprof.findings.finding import Finding, Observed, in_ms
from ddpprof.measures.kernels.devices import imbalance_ns
from ddpprof.measures.kernels.overlap_slowdown import ENOUGH_KNOWN
from ddpprof.model.backends import backend_of

_MUCH = 0.1
"""of the step: less is not worth moving work for"""


def overlap_slowdown(o: Observed) -> Iterator[Finding]:
    """Report computation that is slower because communication shares its device."""
    if not o.worth(o.slowdown_lost_ns) or o.slowdown_ratio is None or (o.slowdown_known_share or 0) < ENOUGH_KNOWN:
        return
    if o.slowdown_control is not None and abs(o.slowdown_control - 1) >= o.slowdown_ratio - 1:
        return  # the steps to compare with differed by more than the effect of communication
    may_be_other_work = o.shares_cores and o.slowdown_control is None
    other_work = "; other work on the cores may explain it, which --baseline-steps would tell"
    yield Finding(
        "overlap-slowdown",
        f"Communication makes concurrent computation take {o.slowdown_ratio:.2f} × as long",
        f"{in_ms(o.slowdown_lost_ns or 0)} per step are lost by kernels that also ran without communication, "
        f"{o.slowdown_known_share:.0%} of the computation under it; the step only loses the part on its critical path"
        f"{other_work if may_be_other_work else ''}",
        _advice(o),
        o.slowdown_lost_ns,
        is_noise=may_be_other_work,
        change=environment_change(**backend_of(o.backend).to_slow_it) if backend_of(o.backend).to_slow_it else None,
    )


def _advice(o: Observed) -> str:
    threads, cores, backend = o.num_threads, o.cores_per_rank, backend_of(o.backend)
    has_a_core_left = threads is None or cores is None or threads == 1 or threads < cores
    if backend.runs_on_host and has_a_core_left:  # or its threads would not give it one
        return backend_of(None).on_slow_computation
    return backend.on_slow_computation


def threads_exceed_cores(o: Observed) -> Iterator[Finding]:
    """Report a host whose ranks compute with many more threads than cores, as without torchrun's OMP_NUM_THREADS."""
    crowded = [one for one in o.hosts if one.is_overcommitted]
    if o.device != "cpu" or not crowded:
        return
    host = max(crowded, key=lambda one: one.num_threads / one.num_cores)
    fit = host.threads_that_fit
    queued = f"; {o.queued_threads or 0:.1f} of a rank's threads were runnable but not running on average"
    yield Finding(
        "threads-exceed-cores",
        f"{host.num_threads} threads share {_cores(host.num_cores)}, and may wait for each other",
        f"host {host.host} has {_cores(host.num_cores)} for this job, and its {host.num_ranks} ranks compute with "
        f"{host.num_threads / host.num_ranks:.3g} threads each{queued if o.threads_wait else ''}",
        f"Set OMP_NUM_THREADS={fit} in the environment of every rank, or call torch.set_num_threads({fit}) in each: "
        "the number of cores divided by the number of ranks. torchrun sets OMP_NUM_THREADS=1 by itself, other ways to "
        "start ranks do not.",
        None,
        subject={"host": host.host},
        change=environment_change(OMP_NUM_THREADS=str(fit)),
    )


def _cores(number: float) -> str:
    return f"{number:.3g} core{'' if number == 1 else 's'}"


def launch_bound(o: Observed) -> Iterator[Finding]:
    """Report an accelerator that idles because the host has not launched its next kernel yet."""
    if not o.launch_bound_ns or not o.step_ns or o.launch_bound_ns < 0.05 * o.step_ns:
        return
    yield Finding(
        "launch-bound",
        "The accelerator waits for the host",
        f"{in_ms(o.launch_bound_ns)} per step, {o.launch_bound_ns / o.step_ns:.0%} of the step: the kernel that ends "
        "the gap had not been launched when the gap began. Profiling slows the host, so the gaps are shorter without "
        "it",
        f"Make fewer and larger launches: {_OF_CUDA if o.has_cuda else _OF_OTHERS}. Avoid .item() and .cpu() in the "
        "step.",
        o.launch_bound_ns,
    )


_OF_CUDA = (
    "torch.compile(model), with mode='reduce-overhead' (CUDA graphs), fused optimizers (AdamW(…, fused=True)) or a "
    "larger batch"
)
_OF_OTHERS = "torch.compile(model), if it has a backend for this device, or a larger batch"


def device_imbalance(o: Observed) -> Iterator[Finding]:
    """Report a device that works more than the process's other devices."""
    surplus = imbalance_ns(o.device_loads)
    if not o.device_loads or not o.step_ns or surplus < _MUCH * o.step_ns:
        return
    loads = sorted(o.device_loads, key=lambda load: load.compute_ns, reverse=True)
    yield Finding(
        "device-imbalance",
        f"Device {loads[0].device} computes {in_ms(surplus)} per step more than the process's devices on average",
        "computation per step: " + ", ".join(f"device {load.device} {in_ms(load.compute_ns)}" for load in loads[:8]),
        f"Move layers, or parts of the batch, from device {loads[0].device} to device {loads[-1].device}.",
        surplus,
        subject={"device": loads[0].device},
    )
