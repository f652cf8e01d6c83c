"""A Dask cluster, here in this process, that is lost while it works."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from fleets import make_fleet

from ddpprof.load.run import find_ranks
from ddpprof.pipeline import workers
from ddpprof.pipeline.analysis import AnalysisOptions, analysed
from ddpprof.pipeline.entry import Cache
from ddpprof.render.json import render_json

distributed = pytest.importorskip("distributed", reason="pip install 'ddpprof[cluster]'")


pytestmark = pytest.mark.filterwarnings("ignore:Creating scratch directories:UserWarning")  # the machine is busy


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import dask

    with dask.config.set({"temporary-directory": str(tmp_path_factory.mktemp("dask"))}):
        made = distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp://",
            host="127.0.0.1",
        )  # fmt: skip
        with made, distributed.Client(made, set_as_default=False) as client:
            yield client


def test_tasks_that_the_client_gave_up_are_not_ranks_that_cannot_be_read(client: Any, tmp_path: Path) -> None:
    """As it does whenever it loses the scheduler, even if it finds it again."""
    fleet = make_fleet(tmp_path / "fleet", 1)
    tasks = [workers.RankTask(one, ()) for one in find_ranks(fleet).ranks]
    leaf = client.submit(len, "abc", pure=False)
    leaf.result()
    client.cancel([leaf], force=True)
    cache = Cache(tmp_path, (), None, is_kept=False)
    with pytest.raises(CancelledError):
        workers._keep(client, {leaf: 0}, tasks, cache, lambda _step: None)


def test_where_workers_go_before_all_is_merged_this_process_merges(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet(tmp_path / "fleet", 3)
    with analysed(fleet, AnalysisOptions(use_cache=False)) as analysis:
        here = render_json(analysis.report)

    def die(_summaries: Any) -> bytes:
        raise OSError("the worker is gone")

    monkeypatch.setattr(workers, "_merge", die)
    with analysed(fleet, AnalysisOptions(scheduler=client.scheduler.address)) as analysis:
        assert render_json(analysis.report) == here
