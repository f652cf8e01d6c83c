"""`ddpprof trace` knows the options of the torchrun that is installed."""

from __future__ import annotations

import argparse

import pytest

from ddpprof.record.torchrun import OPTIONS


def installed() -> dict[tuple[str, ...], bool]:
    """torchrun's options: every name of each, and whether it takes a value."""
    run = pytest.importorskip("torch.distributed.run", reason="needs torch")
    actions = run.get_args_parser()._actions
    ours_too = {"-h", "-m"}
    return {
        tuple(sorted(action.option_strings)): action.nargs != 0
        for action in actions
        if action.option_strings and not ours_too & set(action.option_strings)
    }


def test_the_table_is_torchruns() -> None:
    table, theirs = {tuple(sorted(names)): takes_value for names, takes_value in OPTIONS}, installed()
    if ("--print-completion", "--print_completion") not in theirs:  # a torch before 2.14, with fewer options
        table = {names: takes_value for names, takes_value in table.items() if names in theirs}
    assert table == theirs


def test_no_option_takes_several_values() -> None:
    run = pytest.importorskip("torch.distributed.run", reason="needs torch")
    several = [
        action.option_strings
        for action in run.get_args_parser()._actions
        if action.option_strings and action.nargs not in (None, 0) and not isinstance(action, argparse._HelpAction)
    ]
    assert several == []


def test_no_option_of_torchrun_is_one_of_ddpprofs() -> None:
    names = [name for option, _ in OPTIONS for name in option]
    assert len(names) == len(set(names))
