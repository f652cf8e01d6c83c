"""What torch.compile is told to leave alone."""

from __future__ import annotations

from types import CodeType

import torch._dynamo.trace_rules as rules

from ddpprof.record import optimizer_hooks, patches, watching
from ddpprof.record.session import keep_out_of_compiled_graphs


def test_only_hooks_that_a_compiled_optimizer_contains_are_compiled() -> None:
    keep_out_of_compiled_graphs()
    codes: tuple[CodeType, ...] = (patches._forward.__code__, watching.WatchedSteps.ddp_forward_begins.__code__)
    assert all(rules.check(code) for code in codes)
    assert not rules.check(optimizer_hooks.hook_optimizers.__code__)
