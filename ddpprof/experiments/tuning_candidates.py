"""Selection of the settings that `ddpprof tune` tries, from the profile of a job."""

from __future__ import annotations

from ddpprof.errors import DdpprofError
from ddpprof.model import DdpModule
from ddpprof.model.backends import backend_of
from ddpprof.predict.candidates import Knobs, Shortlist, shortlist, spread
from ddpprof.predict.network import Network
from ddpprof.report.run_profile import Benches, KnownRun, Profiled, profile_run, training_of
from ddpprof.report.tree import Job


def shortlisted(known: KnownRun, bench: Network | None, most: int, allow_lossy: bool) -> tuple[Shortlist, str | None]:
    """Choose at most `most` settings besides the job as it is; if nothing could be predicted, also return why.

    `bench`: a measurement of the job's own network. Raises `DdpprofError`.
    """
    job, modules = known.report.job, known.modules
    if not modules:
        raise DdpprofError("the profile has no DDP module, so there is nothing to tune.")
    if (job.world_size or 1) < 2:
        raise DdpprofError("the job has one rank, which sends nothing. Use more: ddpprof tune --nproc 2 train.py")
    if bench is not None and bench.world_size != job.world_size:
        raise DdpprofError(f"--network was measured among {bench.world_size} ranks, but the job has {job.world_size}.")
    largest = max(modules, key=lambda module: sum(parameter.num_bytes for parameter in module.parameters))
    knobs = knobs_of(largest, job, allow_lossy and all(module.comm_hook is None for module in modules))
    profiled, unpredicted = _profiled(known, Benches(of_run=bench))
    if profiled is None:
        return spread(training_of(known.report, largest), knobs, most), unpredicted
    return shortlist(profiled.profile, knobs, most), None


def _profiled(known: KnownRun, benches: Benches) -> tuple[Profiled | None, str | None]:
    try:
        profiled = profile_run(known, benches)
    except DdpprofError as error:
        return None, str(error)
    if not profiled.profile.training.knows_parameters:
        return None, "the profile does not show when each gradient was there."
    return profiled, None


def knobs_of(module: DdpModule, job: Job, allow_lossy: bool) -> Knobs:
    """Return the options to try.

    A static graph is one of them only if DDP found that it is one, if that avoids a search, and if no gradients
    accumulate: with it, torch fails if the first backward pass does not reduce them.
    """
    settings = module.settings
    searches = bool(settings.get("find_unused_parameters")) and not settings.get("static_graph")
    return Knobs(
        view=not settings.get("gradient_as_bucket_view"),
        static_graph=searches and module.graph_is_static is True and job.num_micro_steps == 1,
        compression=backend_of(job.backend).halving if allow_lossy and module.comm_hook is None else None,
        accepted=job.accepted_caps,
        drops_list=bool(settings.get("has_bucket_cap_mb_list")),
    )
