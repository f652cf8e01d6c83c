"""Rules about gradients that are averaged without torch's DDP."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.data_parallel.own_reduction import OwnReduction
from ddpprof.data_parallel.transfers import DataParallelReport
from ddpprof.findings.finding import Finding, Observed, in_ms, size
from ddpprof.measures.kernels.devices import imbalance_ns


def data_parallel(found: DataParallelReport, o: Observed) -> Iterator[Finding]:
    """Report ``nn.DataParallel`` used instead of DDP."""
    step, loads = found.step, o.device_loads
    of_modules = [len(module.device_ids) for module in found.modules]
    devices = len(loads) or max(of_modules, default=0)
    if devices < 2:
        if of_modules and o.step_ns:
            yield _on_one_device(max(of_modules))
        return
    evidence = f"one process drives {devices} devices, and its threads share one interpreter"
    gain = None
    if step is not None:
        evidence += (
            f"; per step it copies parameters to them ({in_ms(step.replicate_ns)}), batches "
            f"({in_ms(step.scatter_ns)}), outputs ({in_ms(step.gather_ns)}) and gradients ({in_ms(step.reduce_ns)}) "
            f"back; {in_ms(step.exposed_ns)} of that is exposed"
        )
        gain = step.exposed_ns + imbalance_ns(loads)
    if loads:
        busiest = max(loads, key=lambda load: load.compute_ns)
        evidence += f"; device {busiest.device} computes {in_ms(imbalance_ns(loads))} more than the average device"
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


def outputs_scattered_again(found: DataParallelReport, o: Observed) -> Iterator[Finding]:
    """Report a parallel loss, for which outputs gathered on one device are scattered again."""
    step = found.step
    if step is None or not step.num_scattered_again or not o.worth(step.gather_ns + step.scatter_ns):
        return
    yield Finding(
        "outputs-scattered-again",
        "Outputs are gathered on one device, and then scattered again by a second DataParallel",
        f"in {step.num_scattered_again} of {step.num_forwards} forwards per step; scattering takes "
        f"{in_ms(step.scatter_ns)}, gathering {in_ms(step.gather_ns)}",
        "Compute the loss inside the module that DataParallel wraps, so that outputs stay on their devices and only "
        "losses are gathered. Better still, use DistributedDataParallel.",
        step.gather_ns + step.scatter_ns,
    )


def own_reduction(own: OwnReduction, _o: Observed) -> Iterator[Finding]:
    """Report hooks of the script, such as Apex's DistributedDataParallel, that do what torch's DDP does."""
    volume = "" if own.num_bytes is None else f" of {size(own.num_bytes)} in all"
    flat = (
        "" if own.flatten_ns is None else f"; flattening gradients takes {in_ms(own.flatten_ns)} of the training thread"
    )
    yield Finding(
        "own-reduction",
        "Gradients are all-reduced without torch's DDP, by hooks of the script (Apex-like)",
        f"{own.num_all_reduces} all-reduces per step{volume}, launched inside the backward pass; "
        f"computation does not hide {in_ms(own.exposed_ns)} of {in_ms(own.comm_ns)}{flat}",
        "torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True): buckets in the order in which "
        "gradients come, and no copies back. ddpprof trace then shows buckets by parameter, late "
        "gradients and DDP's own work.",
        None,
    )
