"""Rules about one process with several accelerators."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.finding import Finding, Observed, ms
from ddpprof.measures.kernels.devices import imbalance_ns

_MUCH = 0.1
"""least imbalance worth moving work for, as a fraction of the step"""


def data_parallel(o: Observed) -> Iterator[Finding]:
    """Report ``nn.DataParallel`` used instead of DDP."""
    step, loads = o.data_parallel, o.device_loads
    if step is None and not o.data_parallel_devices:
        return
    devices = len(loads) or max(o.data_parallel_devices, default=0)
    if devices < 2:
        if o.data_parallel_devices and o.step_ns:
            yield _on_one_device(max(o.data_parallel_devices))
        return
    evidence = f"one process drives {devices} devices, and its threads share one interpreter"
    gain = None
    if step is not None:
        evidence += (
            f"; per step it copies parameters to them ({ms(step.replicate_ns)}), batches ({ms(step.scatter_ns)}), "
            f"outputs ({ms(step.gather_ns)}) and gradients ({ms(step.reduce_ns)}) back; {ms(step.exposed_ns)} of that "
            "is exposed"
        )
        gain = step.exposed_ns + imbalance_ns(loads)
    if loads:
        busiest = max(loads, key=lambda load: load.compute_ns)
        evidence += f"; device {busiest.device} computes {ms(imbalance_ns(loads))} more than the average device"
    yield Finding(
        "data-parallel",
        f"nn.DataParallel drives {devices} devices from one process",
        evidence,
        "Use DistributedDataParallel with one process per device: torchrun --nproc-per-node N, init_process_group, "
        "DistributedSampler. It copies the model once, and reduces gradients during the backward pass.",
        gain,
    )


def _on_one_device(devices: int) -> Finding:
    where = "no accelerator" if devices == 0 else "a single device"
    return Finding(
        "data-parallel-on-one-device",
        f"nn.DataParallel has {where} to divide the work among",
        "it only calls its module",
        "Use the module itself, or DistributedDataParallel for several devices or processes.",
        None,
    )


def outputs_scattered_again(o: Observed) -> Iterator[Finding]:
    """Report a parallel loss, for which outputs gathered on one device are scattered again."""
    step = o.data_parallel
    if step is None or not step.num_scattered_again or not o.worth(step.gather_ns + step.scatter_ns):
        return
    yield Finding(
        "outputs-scattered-again",
        "Outputs are gathered on one device, and then scattered again by a second DataParallel",
        f"in {step.num_scattered_again} of {step.num_forwards} forwards per step; scattering takes "
        f"{ms(step.scatter_ns)}, gathering {ms(step.gather_ns)}",
        "Compute the loss inside the module that DataParallel wraps, so that outputs stay on their devices and only "
        "losses are gathered. Better still, use DistributedDataParallel.",
        step.gather_ns + step.scatter_ns,
    )


def device_imbalance(o: Observed) -> Iterator[Finding]:
    """Report a device that works more than the other devices of its process."""
    surplus = imbalance_ns(o.device_loads)
    if not o.step_ns or surplus < _MUCH * o.step_ns:
        return
    loads = sorted(o.device_loads, key=lambda load: load.compute_ns, reverse=True)
    advice = (
        "It also computes the loss of the whole batch: let the wrapped module return its loss, so that every device "
        "computes its own."
        if o.data_parallel is not None
        else f"Move layers, or parts of the batch, from device {loads[0].device} to device {loads[-1].device}."
    )
    yield Finding(
        "device-imbalance",
        f"Device {loads[0].device} computes {ms(surplus)} per step more than the average device of its process",
        "computation per step: " + ", ".join(f"device {load.device} {ms(load.compute_ns)}" for load in loads[:8]),
        advice,
        surplus,
    )
