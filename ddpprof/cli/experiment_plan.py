"""Plan an experiment from the arguments of `ddpprof overhead`, `scale` or `sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpprof.errors import DdpprofError

if TYPE_CHECKING:
    from ddpprof.experiments.plan import Experiment, Variant

_AFTER_THE_SCRIPT = ("--nproc", "--vary", "--strong", "--set")
"""options that may also follow the script; other options after the script are passed to the script"""

_PROFILED_STEPS = 5


def split_experiment(arguments: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str], bool]:
    """Return ddpprof's own options, the command, and whether it follows ``--``, so that it may be any program."""
    arity = parser._option_string_actions  # noqa: SLF001 (argparse has no public way to ask for an option's arity)
    own: list[str] = []
    command: list[str] = []
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return own, [*command, *arguments[index + 1 :]], not command
        name, equals, _ = word.partition("=")
        if name in _AFTER_THE_SCRIPT or (not command and word.startswith("-") and word != "-"):
            action = arity.get(name)
            has_value = not equals and action is not None and action.nargs != 0 and index + 1 < len(arguments)
            # Joined, because a value may look like an option: --vary --batch-size=32,64
            own.append(f"{word}={arguments[index + 1]}" if has_value else word)
            index += 2 if has_value else 1
        else:
            command.append(word)
            index += 1
    return own, command, False


def plan(options: argparse.Namespace, command: Sequence[str], is_wrapped: bool) -> Experiment:
    """Plan the experiment. Raises `DdpprofError`."""
    from ddpprof.experiments.plan import EXPERIMENT_FORMAT, Experiment, ExperimentKind

    kind = ExperimentKind(options.kind)
    variants = {ExperimentKind.OVERHEAD: _overhead, ExperimentKind.SCALE: _scale, ExperimentKind.SWEEP: _sweep}[kind](
        options, command
    )
    if is_wrapped and len({v.nproc for v in variants}) > 1 and not any("{nproc}" in word for word in command):
        raise DdpprofError(
            "use {nproc} for the number of processes in the command: ddpprof … -- mpirun -n {nproc} python train.py"
        )
    return Experiment(
        format=EXPERIMENT_FORMAT,
        kind=kind,
        command=tuple(command),
        as_module=options.module,
        is_wrapped=is_wrapped,
        variants=tuple(variants),
        rounds=options.rounds,
        skip_first=options.skip_first,
        timed_steps=options.timed_steps or (5 if kind is ExperimentKind.OVERHEAD and not options.apart else 20),
    )


def _overhead(options: argparse.Namespace, command: Sequence[str]) -> list[Variant]:
    from dataclasses import replace

    from ddpprof.experiments.plan import Variant
    from ddpprof.experiments.vary import with_settings

    plain = Variant(options.nproc or 1, any_number=options.nproc is None, profiled_steps=_PROFILED_STEPS)
    with_ddp = with_settings(plain, options.set, command)
    if not options.apart:
        return [replace(with_ddp, ddp_blocks=options.blocks)]
    return [with_ddp, replace(with_ddp, without_ddp=True, profiled_steps=0)]


def _scale(options: argparse.Namespace, command: Sequence[str]) -> list[Variant]:
    from dataclasses import replace

    from ddpprof.experiments.plan import Variant
    from ddpprof.experiments.vary import shared_by, with_settings

    alone = with_settings(Variant(1, without_ddp=True, profiled_steps=_PROFILED_STEPS), options.set, command)
    several = [replace(alone, nproc=nproc, without_ddp=False) for nproc in options.nproc or [1, 2]]
    weak = [] if options.no_weak else [alone, *several]
    strong = [] if options.strong is None else [shared_by(v, options.strong, command) for v in (alone, *several)]
    if not weak and not strong:
        raise DdpprofError("--no-weak leaves nothing to measure without --strong")
    return [*weak, *strong]


def _sweep(options: argparse.Namespace, command: Sequence[str]) -> list[Variant]:
    from dataclasses import replace

    from ddpprof.experiments.plan import Variant
    from ddpprof.experiments.vary import vary, with_settings

    if not options.vary:
        raise DdpprofError("specify what to vary: --vary '--batch-size=32,64,128' or --vary bucket_cap_mb=5,25")
    plain = [Variant(nproc, any_number=options.nproc is None) for nproc in options.nproc or [1]]
    nprocs = [with_settings(variant, options.set, command) for variant in plain]
    by_nproc = [vary(variant, options.vary, command) for variant in nprocs]
    variants = [variant for of_one_value in zip(*by_nproc, strict=True) for variant in of_one_value]
    is_share = options.size_is == "share" or (options.size_is is None and "batch" in variants[0].varied)
    return [replace(v, is_share=is_share, is_work=is_share or options.size_is is not None) for v in variants]
