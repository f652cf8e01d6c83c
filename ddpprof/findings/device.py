"""Rules about devices: what communication slows, one that waits for its host, one that works more than the others."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.finding import Finding, Observed, ms
from ddpprof.measures.kernels.devices import imbalance_ns
from ddpprof.measures.kernels.slowdown import ENOUGH_KNOWN

_MUCH = 0.1
"""of the step: less is not worth moving work for"""


def overlap_slowdown(o: Observed) -> Iterator[Finding]:
    """Communication and the computation beside it share the device."""
    if not o.worth(o.slowdown_lost_ns) or o.slowdown_ratio is None or (o.slowdown_known_share or 0) < ENOUGH_KNOWN:
        return
    if o.slowdown_control is not None and abs(o.slowdown_control - 1) >= o.slowdown_ratio - 1:
        return  # the steps to compare with differed by more than communication makes
    yield Finding(
        "overlap-slowdown",
        f"Communication makes the computation beside it take {o.slowdown_ratio:.2f} × as long",
        f"{ms(o.slowdown_lost_ns or 0)} per step are lost by kernels that were also seen without communication, "
        f"{o.slowdown_known_share:.0%} of the computation under it; a step feels what of that is on its critical path",
        _advice(o),
        o.slowdown_lost_ns,
        is_noise=o.shares_cores and o.slowdown_control is None,  # other work on the cores explains as much
    )


def _advice(o: Observed) -> str:
    threads, cores = o.num_threads, o.cores_per_rank
    if o.backend == "gloo" and (threads is None or cores is None or threads == 1 or threads < cores):
        return _ADVICE[""]  # its threads have a core left, or cannot be given one so
    return _ADVICE.get(o.backend or "", _ADVICE[""])


_ADVICE = {
    "nccl": "Let NCCL take fewer SMs: try NCCL_MAX_CTAS=8, then 4 (NCCL 2.17 and newer); less time lost beside it is "
    "worth more than its speed as long as the communication stays hidden.",
    "gloo": "Leave a core to gloo's threads: OMP_NUM_THREADS, or torch.set_num_threads, below the number of cores per "
    "rank.",
    "": "Give communication fewer of the device's resources, as far as it stays hidden.",
}


def launch_bound(o: Observed) -> Iterator[Finding]:
    """The accelerator has nothing to do because the host has not launched it yet."""
    if not o.launch_bound_ns or not o.step_ns or o.launch_bound_ns < 0.05 * o.step_ns:
        return
    yield Finding(
        "launch-bound",
        f"The accelerator waits {ms(o.launch_bound_ns)} per step for the host",
        f"{o.launch_bound_ns / o.step_ns:.0%} of the step: the kernel that ends the gap had not been launched when the "
        "gap began; profiling slows the host, so without it the gaps are shorter",
        "Fewer, larger launches: torch.compile(model), its mode='reduce-overhead' (CUDA graphs), fused optimizers "
        "(AdamW(…, fused=True)), a larger batch; no .item() or .cpu() in the step.",
        o.launch_bound_ns,
    )


def device_imbalance(o: Observed) -> Iterator[Finding]:
    """One device of the process works more than the others."""
    surplus = imbalance_ns(o.device_loads)
    if not o.step_ns or surplus < _MUCH * o.step_ns:
        return
    loads = sorted(o.device_loads, key=lambda load: load.compute_ns, reverse=True)
    yield Finding(
        "device-imbalance",
        f"Device {loads[0].device} computes {ms(surplus)} per step more than the process's devices on average",
        "computation per step: " + ", ".join(f"device {load.device} {ms(load.compute_ns)}" for load in loads[:8]),
        f"Move layers, or parts of the batch, from device {loads[0].device} to device {loads[-1].device}.",
        surplus,
    )
