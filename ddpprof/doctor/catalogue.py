"""All checks of the doctor, in the order in which they run."""

from __future__ import annotations

from functools import partial

from ddpprof.doctor.check import Check

MACHINE = (
    Check(("versions",), "installation", "check_versions", 20, quick=True),
    Check(("devices", "backends", "profiler", "other-profilers"), "installation", "check_torch", 70, quick=True),
    Check(("disk",), "machine", "check_disk", 20, quick=True),
    Check(("shared-memory",), "machine", "check_shared_memory", 20, quick=True),
    Check(("clock",), "machine", "check_clock", 20, quick=True),
    Check(("cores", "memory"), "machine", "check_limits", 20, quick=True),
    Check(("gloo-interface",), "network", "check_gloo_interface", 20, quick=True),
    Check(("nccl-interface",), "network", "check_nccl_interface", 20, quick=True),
)
"""checks of machine and installation, without training"""

_SHARED_CORES = "when ranks share cores, communication takes them from computation"
_TAKES_LONG = "it takes minutes, and is most informative on GPUs"

_training = partial(Check, trains=True)
_on_gpu = partial(_training, least_gpus=1)
_of_ranks = partial(_training, alone=True, least_ranks=2)
"""a check that measures times of several ranks"""

TRAINING = (
    _training(
        ("parameters", "collectives", "synchronising-calls", "foreign-contexts", "export-pause"),
        "harmless",
        "check_unchanged",
        120,
        quick=True,
    ),
    _training(("step-time", "parts-of-step", "after-the-window"), "timed", "check_steps", 120, alone=True),
    _training(("unused-parameters",), "counted", "check_rotating_branches", 60),
    _training(("amp-steps",), "counted", "check_amp_steps", 60),
    _training(("closure-steps",), "counted", "check_closure_steps", 60),
    _training(("compiled-steps",), "counted", "check_compiled_steps", 120),
    _on_gpu(("graph-memory",), "counted", "check_graph_replay", 120, why_gpus="graphs are only replayed on a GPU"),
    _on_gpu(("beside-nsys",), "fabric", "check_beside_nsys", 120, why_gpus="nsys profiles GPUs"),
    _of_ranks(("delay",), "timed", "check_delay", 90),
    _of_ranks(("bucket-bytes", "bucket-times"), "timed", "check_buckets", 90),
    _of_ranks(("replay",), "timed", "check_replay", 120),
    _of_ranks(("netbench",), "fabric", "check_netbench", 200),
    _of_ranks(("exposed",), "fabric", "check_exposed", 120, least_gpus=2, why_gpus=_SHARED_CORES),
    _of_ranks(("overhead",), "fabric", "check_overhead", 420, least_gpus=2, why_gpus=_TAKES_LONG),
    _training(("exception",), "endings", "check_exception", 180, least_ranks=2),
    _training(("ctrl-c",), "endings", "check_ctrl_c", 180),
    _training(("sigterm",), "endings", "check_sigterm", 180),
)
"""acceptance tests of the recorder, with scripts that know nothing of ddpprof"""

QUICK = tuple(name for check in (*MACHINE, *TRAINING) if check.quick for name in check.names)
NAMES = tuple(name for check in (*MACHINE, *TRAINING) for name in check.names)
