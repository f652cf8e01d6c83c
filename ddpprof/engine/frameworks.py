"""How to set each option, in plain PyTorch or in the framework that creates the DDP module.

`framework` is ``None`` for plain PyTorch; otherwise, it is a value of ``Record.framework``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.model import Loader
from ddpprof.model.backends import backend_of

_ACCELERATE = frozenset(
    (
        "broadcast_buffers",
        "bucket_cap_mb",
        "comm_hook",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "static_graph",
    )
)
"""arguments of DDP that Accelerate's ``DistributedDataParallelKwargs`` accepts"""
_TRANSFORMERS = frozenset(("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "static_graph"))
"""arguments of DDP that ``TrainingArguments`` accepts with the prefix ``ddp_``; older versions have no
``ddp_static_graph``
"""
_TITLES = {"transformers": "transformers' Trainer", "accelerate": "Accelerate"}


def ddp_argument(framework: str | None, *arguments: str) -> str:
    """Return code that passes constructor arguments such as ``static_graph=True`` to DDP."""
    listed = ", ".join(arguments)
    if framework in ("lightning", "fabric"):
        return f"{_OF_LIGHTNING[framework]}(strategy=DDPStrategy({listed}))" if arguments else ""
    if framework not in _TITLES:
        return f"DistributedDataParallel({', '.join(['model', *arguments])})"
    known = _TRANSFORMERS if framework == "transformers" else _ACCELERATE
    options = [one for one in arguments if one.partition("=")[0] in known]
    others = [one for one in arguments if one not in options]
    said = []
    if options and framework == "transformers":
        said.append(f"TrainingArguments({', '.join(f'ddp_{one}' for one in options)})")
    elif options:
        said.append(f"Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({', '.join(options)})])")
    if others:
        them = "them" if len(others) > 1 else "it"
        said.append(f"{', '.join(others)} of DistributedDataParallel ({_TITLES[framework]} has no option for {them})")
    return ", and ".join(said)


_OF_LIGHTNING = {"lightning": "Trainer", "fabric": "Fabric"}


def without_ddp_argument(framework: str | None, name: str) -> str:
    """Return code that constructs DDP without an argument that the script currently passes."""
    if framework == "transformers" and name == "find_unused_parameters":
        return "TrainingArguments(ddp_find_unused_parameters=False)"
    if framework == "transformers":
        return f"TrainingArguments without ddp_{name}"
    if framework == "accelerate":
        return f"DistributedDataParallelKwargs without {name}"
    if framework in ("lightning", "fabric"):
        return f"{_OF_LIGHTNING[framework]}(strategy=DDPStrategy(…)) without {name}"
    return f"DistributedDataParallel(model), without {name}"


def accumulation(framework: str | None, static_graph: bool) -> str:
    """Return instructions for accumulating gradients over several batches.

    `static_graph`: whether DDP has ``static_graph=True``, with which the first backward pass must reduce gradients.
    """
    how = _ACCUMULATION.get(framework, _ACCUMULATION[None])
    limit = (
        "from the second step on (required by static_graph=True), " if framework is None else "without static_graph, "
    )
    return f"{limit if static_graph else ''}accumulate gradients over several batches: {how}"


_ACCUMULATION = {
    None: "run the forward and backward passes of all but the last batch under `with ddp.no_sync():`, and divide "
    "each loss by the number of batches",
    "transformers": "TrainingArguments(gradient_accumulation_steps=…)",
    "accelerate": "Accelerator(gradient_accumulation_steps=…), and `with accelerator.accumulate(model):` around "
    "each batch",
    "lightning": "Trainer(accumulate_grad_batches=…)",
    "fabric": "run the forward and backward passes of all but the last batch under "
    "`with fabric.no_backward_sync(model):`",
}


def reduce_once(framework: str | None, static_graph: bool) -> str:
    """Return sentences that say how to reduce gradients only in the last backward pass of a step."""
    limit = ""
    if static_graph and framework is None:
        limit = (
            " With static_graph=True, every pass of the first step must reduce gradients; otherwise, PyTorch raises an "
            "error in that step."
        )
    elif static_graph:
        limit = " Remove static_graph=True: with it, PyTorch fails if the first pass does not reduce gradients."
    return f"{_REDUCE_ONCE.get(framework, _REDUCE_ONCE[None])}{limit}"


_REDUCE_ONCE = {
    None: "Reduce gradients only in the last backward pass of a step: run the forward and backward passes of the other "
    "batches under `with model.no_sync():`.",
    "transformers": "Let the Trainer accumulate gradients: TrainingArguments(gradient_accumulation_steps=…) reduces "
    "them only in the last pass of a step.",
    "accelerate": "Let Accelerate accumulate gradients, so that only the last pass of a step reduces them: "
    "Accelerator(gradient_accumulation_steps=…), and `with accelerator.accumulate(model):` around each batch.",
    "lightning": "Let the Trainer accumulate gradients: Trainer(accumulate_grad_batches=…) reduces them only in the "
    "last pass of a step. With manual optimization, run the other passes under `with self.trainer.model.no_sync():`.",
    "fabric": "Reduce gradients only in the last backward pass of a step: run the forward and backward passes of the "
    "other batches under `with fabric.no_backward_sync(model):`.",
}


def compression(framework: str | None, backend: str | None, *arguments: str) -> str | None:
    """Return the source code that sends gradients in half precision, or ``None`` if the framework has no option for it.

    `arguments`: other arguments of DDP's constructor to set together with it.
    """
    halving = backend_of(backend).halving
    hook, where = f"default_hooks.{halving.hook}", ", from torch.distributed.algorithms.ddp_comm_hooks"
    if framework is None:
        made = f"ddp = {ddp_argument(None, *arguments)}; " if arguments else ""
        return f"{made}ddp.register_comm_hook(ddp.process_group, {hook}){where}"
    if framework == "accelerate":
        return ddp_argument(framework, *arguments, f"comm_hook=DDPCommunicationHookType.{halving.name}")
    if framework == "lightning" and backend_of(backend).kernels:  # Lightning registers hooks on accelerators only
        return f"{ddp_argument(framework, *arguments, f'ddp_comm_hook={hook}')}{where}"
    return None


def timeout_argument(framework: str | None) -> str:
    """Return code that sets the timeout of a process group's collectives."""
    return _TIMEOUT.get(framework, _TIMEOUT[None])


_TIMEOUT = {
    None: "init_process_group(timeout=timedelta(minutes=…))",
    "transformers": "TrainingArguments(ddp_timeout=…), in seconds",
    "accelerate": "Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=…))])",
    "lightning": "Trainer(strategy=DDPStrategy(timeout=timedelta(minutes=…)))",
    "fabric": "Fabric(strategy=DDPStrategy(timeout=timedelta(minutes=…)))",
}


def or_join(framework: str | None) -> str:
    """Return a note on training with uneven numbers of batches; empty if the framework does not support it."""
    if framework == "accelerate":
        return "; or train within `with accelerator.join_uneven_inputs([model]):`"
    return "" if framework is not None else f"; or {TRAIN_WITHIN_JOIN}"


TRAIN_WITHIN_JOIN = "train within `with model.join():`, if the loop calls no collectives and uses no SyncBatchNorm"


def divide_data(framework: str | None, loader: Loader) -> str:
    """Return advice on sharding the data across the ranks."""
    if framework in _DIVISION:
        return _DIVISION[framework]
    if loader.is_iterable:
        return (
            "Make the IterableDataset yield a different shard on each rank: pass it the rank and world size, and "
            "split the rank's shard among its workers (torch.utils.data.get_worker_info()). Or use "
            "split_dataset_by_node of Hugging Face datasets, or split_by_node of WebDataset."
        )
    shuffle = "shuffle=True" if loader.shuffles else "shuffle=False"
    return (
        f"DataLoader(dataset, sampler=DistributedSampler(dataset, {shuffle}), …), without the DataLoader's shuffle "
        "argument."
    )


_DIVISION = {
    "transformers": "The Trainer shards the DataLoaders that it creates. If you override get_train_dataloader, return "
    "self.accelerator.prepare(loader), which shards your own DataLoader.",
    "accelerate": "Let Accelerate shard the data: loader = accelerator.prepare(loader).",
    "lightning": "Let the Trainer shard the data: leave use_distributed_sampler at True, and use a map-style dataset. "
    "An IterableDataset must shard its data itself.",
    "fabric": "Let Fabric shard the data: loader = fabric.setup_dataloaders(loader).",
}


def reshuffle(framework: str | None) -> str:
    """Return advice on shuffling the data differently in each epoch."""
    if framework == "accelerate":
        return "Call loader.set_epoch(epoch) at the start of each epoch, so that Accelerate's sampler gets the epoch."
    return "Call sampler.set_epoch(epoch) at the start of each epoch."


def pad_to_longest(framework: str | None) -> str:
    """Return advice on padding each batch only to its longest sequence."""
    how = "pad in the collate_fn, not in the dataset"
    if framework == "transformers":
        how = 'use DataCollatorWithPadding(tokenizer, padding="longest")'
    return (
        f'Pad each batch only to its longest sequence: {how}, and do not pass padding="max_length" to the tokenizer. '
        "With pad_to_multiple_of=8, lengths remain suitable for the matrix units of GPUs."
    )


def seed_ranks(framework: str | None, generators: Sequence[str]) -> str:
    """Return advice on seeding each rank differently.

    `generators`: generators that have the same state on all ranks, as device types or module names. If only the
    accelerators' generators are identical, the CPU generator is not seeded, because it often determines the order of
    the samples, which must be the same on all ranks.
    """
    on_cpu = "cpu" in generators
    seeding = {"cpu": "torch.manual_seed", "numpy": "np.random.seed", "random": "random.seed"}
    first = "cpu" if on_cpu else generators[0]
    seed = seeding.get(first, f"torch.{first}.manual_seed")
    if framework == "transformers":
        order = ", with TrainingArguments(data_seed=…) and without grouping by length" if on_cpu else ""
        return (
            "Give each rank its own seed in on_train_begin of a TrainerCallback: "
            f"{seed}(args.seed + args.process_index){order}."
        )
    others = [seeding[one] for one in generators if one in ("numpy", "random") and seeding[one] != seed]
    also = f" Call {' and '.join(others)} in the same way." if others and framework != "accelerate" else ""
    return _SEEDS.get(framework, _SEEDS[None]).format(seed=seed) + also


_SEEDS = {
    None: "Give each rank its own seed once DDP has wrapped the model: {seed}(seed + dist.get_rank()).",
    "accelerate": "Give each rank its own seed after accelerator.prepare(…): set_seed(seed, device_specific=True).",
    "lightning": "Give each rank its own seed in on_train_start of the LightningModule: "
    "{seed}(seed + self.global_rank).",
    "fabric": "Give each rank its own seed after fabric.setup(…) and fabric.setup_dataloaders(…): "
    "{seed}(seed + fabric.global_rank).",
}


def load_with(framework: str | None, num_workers: int, persistent: bool) -> str:
    """Return code that loads data with this number of workers. `persistent`: whether to use persistent workers."""
    if framework == "transformers":
        more = ", dataloader_persistent_workers=True" if persistent else ""
        return f"TrainingArguments(dataloader_num_workers={num_workers}{more})"
    return f"DataLoader(…, num_workers={num_workers}{', persistent_workers=True' if persistent else ''})"
