"""Advice on error messages of DDP, its backends and launchers, and on signals that end a rank."""

from __future__ import annotations

import re
import signal
from contextlib import suppress

from ddpprof.model.backends import refusal_of_shared_gpu

_SHARED_GPU = (
    "Two ranks use the same GPU, which NCCL does not allow. Give each rank its own GPU: call "
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group, and start no more ranks than the '
    "host has GPUs."
)
_ADVICE = {
    r"BdbQuit": """
        A breakpoint() was reached, but the rank has no interactive input: remove the breakpoint(), or run a single
        process under a debugger.""",
    r"Expected to mark a variable ready only once": """
        A parameter got its gradient twice in one backward pass. With gradient checkpointing, pass checkpoint(…,
        use_reentrant=False), or remove find_unused_parameters=True. Alternatively, pass static_graph=True if every step
        uses the same parameters. Without checkpointing, look for a parameter that is used outside forward(), or in
        several backward passes.""",
    r"[Yy]our training graph has changed": """
        The set of parameters that a step uses has changed, which static_graph=True does not allow: pass
        find_unused_parameters=True instead.""",
    r"Expected to have finished reduction": """
        These parameters did not contribute to the loss on that rank: use them in every forward pass, or pass
        find_unused_parameters=True to DistributedDataParallel.""",
    r"modified by an inplace operation": """
        Before each forward pass, DDP copies rank 0's buffers, such as BatchNorm's statistics, into the module. If a
        loss needs two forward passes before backward(), pass broadcast_buffers=False.""",
    r"backward through the graph a second time": """
        The loss depends on a tensor from an earlier step: call detach() on everything that is kept between steps, such
        as hidden states or accumulated losses.""",
    r"doesn't have any parameters? that require": """
        All parameters of the module are frozen: wrap only modules that are trained, or unfreeze parameters before
        wrapping.""",
    r"uninitialized parameters": """
        Run one forward pass of the module on dummy inputs before DistributedDataParallel wraps it.""",
    r"device_ids and output_device arguments only work": """
        Move the module to its device first: model.to(local_rank), then DistributedDataParallel(model,
        device_ids=[local_rank]). On CPU, or for a module on several devices, do not pass device_ids.""",
    r"device_ids can only be None or contain a single element": """
        One process drives one device: pass device_ids=[local_rank], and start one process per GPU (torchrun
        --nproc-per-node=gpu).""",
    r"input module must be on the same type of devices": """
        Some parameters are on a different device from the other parameters: call model.to(device) before
        DistributedDataParallel
        wraps the model.""",
    r"SyncBatchNorm layers only work with GPU modules": """
        Move the model to its GPU before DistributedDataParallel wraps it. On CPU, keep BatchNorm: do not call
        convert_sync_batchnorm().""",
    r"register_(?:builtin_)?comm_hook (?:or \S+ )?can only be called once": """
        A DDP module can have only one communication hook, and a framework may already have registered a hook: remove
        one of these hooks.""",
    r"Communication hook(?:: (?:bucket|return) annotation|s? must be callable)": """
        A hook must be a function with this signature: def hook(state, bucket: dist.GradBucket) ->
        torch.futures.Future[torch.Tensor].""",
    r"BF16 all reduce communication hook required": """
        Use fp16_compress_hook instead, or a CUDA 11 build of torch with NCCL 2.10 or later.""",
    r"Can't detach views in-place": """
        With gradient_as_bucket_view=True gradients are views of DDP's buckets: call
        optimizer.zero_grad(set_to_none=True) instead of grad.detach_(), or remove gradient_as_bucket_view.""",
    r"DDP Pickling/Unpickling are only supported": """
        Save the model instead of the DDP module: torch.save(model.module.state_dict(), path).""",
    r"set_static_graph\(\) should be called before training": """
        Pass static_graph=True to DistributedDataParallel instead.""",
    r"Compiled autograd is not compatible with C\+\+ DDP Reducer": """
        Set torch._dynamo.config.optimize_ddp = "python_reducer" before the model is compiled.""",
    r"indicates a bug in (?:DDP|PyTorch)": """
        This is a bug in torch: try another version, and report it to PyTorch.""",
    r"No backend type associated with device type cpu|Tensors must be CUDA": """
        The process group uses only NCCL, which can send only GPU tensors: move the module and its tensors to the GPU,
        or use init_process_group("cpu:gloo,cuda:nccl").""",
    r"invalid device ordinal": """
        The host has more ranks than visible GPUs: check --nproc-per-node and CUDA_VISIBLE_DEVICES.""",
    r"EADDRINUSE|[Aa]ddress already in use": """
        Another job on the host is using the port: choose another MASTER_PORT, or start torchrun with --standalone.""",
    r"DDP expects same model across all ranks|verify_params|params?\b.*(?:mismatch|appears not to match)": """
        The ranks have built different models: build the same model with the same arguments on every rank.""",
    r"out of memory|OutOfMemory": """
        The rank ran out of memory: use a smaller batch, or accumulate gradients.""",
    r"MemoryError|an't allocate memory|annot allocate memory": """
        The rank could not allocate memory: the machine has no free memory, or a limit applies (ulimit -v, a control
        group). Use a smaller batch or fewer DataLoader workers, or raise the limit.""",
    r"insufficient shared memory|killed by signal: Bus error": """
        Shared memory (/dev/shm) was probably full: make it larger (docker run --shm-size=8g), or use fewer workers.""",
    r"Too many open files": """
        The process reached its limit on open files (see ulimit -n). Look for files and sockets that are never
        closed. If DataLoader workers need that many files, raise the limit, or call
        torch.multiprocessing.set_sharing_strategy("file_system").""",
    r"No space left on device": """
        A disk or /dev/shm, where DataLoader workers put batches, was full. Use df to find out which.""",
}
"""regular expression that matches an error message → advice; the first entry that matches is used"""
_NOISE = re.compile(
    r"\[/\S+:\d+\] | This is typically caused by a remote worker.*|"
    r" This error (?:is caused by|indicates that) .*"
)
"""parts of error messages that the advice replaces: gloo's source location, and PyTorch's lists of possible causes"""


def shortened(error: str) -> str:
    """Return the error message without the parts that the advice replaces."""
    return _NOISE.sub("", error)


def advice_on_error(said: str) -> str | None:
    """Return advice on a rank's last error message; ``None`` if there is no advice for it."""
    if refusal_of_shared_gpu(said) is not None:
        return _SHARED_GPU
    advice = next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, said)), None)
    return None if advice is None else " ".join(advice.split())


_BY_A_SHELL = 128
"""the exit code that a shell reports is this number plus N if signal N ended the command"""
_KILLED_WORKER = re.compile(r"DataLoader worker .* is killed by signal: Killed")
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""signals that a process receives because of a fault in its own code"""
_LIMITS = {
    signal.SIGXCPU: "It reached its CPU time limit (see ulimit -t).",
    signal.SIGXFSZ: "It reached its file size limit (see ulimit -f).",
    signal.SIGHUP: "Its terminal or its connection was closed: start the job with nohup, or in tmux.",
}
"""signal → sentence on why the process received it"""
NOT_KNOWN = "The out-of-memory killer may have killed the process: check the host's log (dmesg)."
_NOT_BY_THE_KERNEL = (
    "The kernel's out-of-memory killer did not kill any process on that host at that time. Something else sent the "
    "signal: a scheduler (which may limit memory and time as well), systemd-oomd, or a person."
)


def killer_sentence(said: str | None, exit_code: int | None, num_oom_kills: int | None) -> str | None:
    """Return a sentence that says what may have killed a rank or its `DataLoader` worker.

    Returns ``None`` if nothing suggests that the rank was killed.

    `said`: the rank's error message, if it left one.
    """
    if said is None and exit_code is not None and -exit_code in _LIMITS:
        return _LIMITS[signal.Signals(-exit_code)]
    was_killed = exit_code in (-signal.SIGKILL, _BY_A_SHELL + signal.SIGKILL) if said is None else is_of_worker(said)
    if num_oom_kills and (was_killed or (said is None and exit_code is None)):
        processes = "a process" if num_oom_kills == 1 else f"{num_oom_kills} processes"
        return (
            f"The kernel's out-of-memory killer killed {processes} on that host, so memory was probably full. If so, "
            "use a smaller batch or fewer DataLoader workers, or give the job more memory."
        )
    if not was_killed:
        return None
    return NOT_KNOWN if num_oom_kills is None else _NOT_BY_THE_KERNEL


def signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def is_of_worker(said: str) -> bool:
    """Return True if a rank failed because a worker of its `DataLoader` was killed."""
    return _KILLED_WORKER.search(said) is not None
