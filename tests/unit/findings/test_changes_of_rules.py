"""The change of each rule does what its advice says."""

from __future__ import annotations

from typing import Any

import pytest
from observations import MS, ddp_module, loader, observed

from ddpprof.findings import Finding, find
from ddpprof.measures.ranks.host_cores import HostCores

SEARCHING = {"find_unused_parameters": True, "unused": (), "num_lacking_passes": 0}
STATIC = {"find_unused_parameters": True, "unused": ("p0",), "graph_is_static": True}
BUFFERS = {"num_buffers": 3, "buffer_bytes": 24, "num_batch_norms": 1, "broadcast_buffers": True}


def the(rule: str, *modules: Any, **given: Any) -> Finding:
    (found,) = (one for one in find(observed(*modules, **given)) if one.rule == rule)
    return found


@pytest.mark.parametrize(
    ("rule", "module", "given", "values"),
    [
        ("find-unused-for-nothing", SEARCHING, {"unused_search_ns": 2 * MS}, {"find_unused_parameters": False}),
        (
            "static-graph",
            STATIC,
            {"unused_search_ns": 2 * MS},
            {"static_graph": True, "find_unused_parameters": False},
        ),
        ("buffers-broadcast", BUFFERS, {"buffer_sync_ns": MS}, {"broadcast_buffers": False}),
        (
            "gradient-copies",
            {"gradient_as_bucket_view": False},
            {"copy_out_ns": MS},
            {"gradient_as_bucket_view": True},
        ),
    ],
)
def test_arguments_of_ddp(rule: str, module: dict[str, Any], given: dict[str, Any], values: dict[str, Any]) -> None:
    change = the(rule, ddp_module(**module), **given).change
    assert change is not None
    assert (change.kind, change.values, change.is_lossy) == ("ddp", values, False)
    assert all(name in change.code for name in values)


def test_a_variable_of_the_environment() -> None:
    found = the("threads-exceed-cores", hosts=(HostCores("b", 4, 32, 8.0),), device="cpu")
    assert found.subject == {"host": "b"}
    assert found.change is not None
    assert (found.change.kind, found.change.values) == ("environment", {"OMP_NUM_THREADS": "2"})


def test_workers_of_a_loader() -> None:
    found = the("idle-for-data", data_ns=9 * MS, loaders={0: (loader(num_workers=1),)}, cores_per_rank=64.0)
    assert found.change is not None
    assert (found.change.kind, found.change.values) == ("loader", {"num_workers": 4, "persistent_workers": True})
    assert found.change.code in found.advice


def test_where_no_core_is_left_there_is_nothing_to_change() -> None:
    found = the("idle-for-data", data_ns=9 * MS, loaders={0: (loader(num_workers=3),)}, cores_per_rank=2.0)
    assert found.change is None
