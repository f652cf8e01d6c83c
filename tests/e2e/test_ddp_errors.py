"""DDP's own errors: which parameters they are about, and whether the advised change mends the training."""

from __future__ import annotations

import pytest
from jobs import Run, script, without_torch_aborting

SPARE = "2 parameters (spare.weight, spare.bias)"
TWICE = "1 parameter (block.bias) got a gradient twice in one backward pass, because checkpoint(…, use_reentrant=True)"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("unused", f"{SPARE} did not contribute to the loss in the previous step: use them in every forward pass."),
        ("unused_later", f"{SPARE} did not contribute to the loss in the previous step: use them in every forward"),
        (
            "graph_changes",
            f"{SPARE} did not contribute to the loss in this step, but did in the first step, which static_graph=True",
        ),
        ("checkpoint", TWICE),
        ("shared_checkpoint", TWICE),
        ("outside", "1 parameter (spare.bias) got a gradient twice in one backward pass. With find_unused_parameters"),
    ],
)
def test_the_parameters_and_the_cause_are_named(ddpprof: Run, kind: str, said: str) -> None:
    job = ("--nproc-per-node", "2", "--out", "run", *script("ddp_errors.py", kind))
    assert ddpprof("trace", *job).returncode == 1
    assert said in " ".join(ddpprof("report", "run").stdout.split())
    mended = without_torch_aborting(lambda: ddpprof("trace", "--force", *job, "--mended"))
    assert mended.returncode == 0, f"the advised change mends it: {mended.stderr}"
