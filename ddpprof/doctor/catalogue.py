"""All checks of the doctor, in the order in which they run."""

from __future__ import annotations

from ddpprof.doctor.check import Check

MACHINE = (
    Check(("versions",), "installation", "check_versions", 20),
    Check(("devices", "backends", "profiler", "other-profilers"), "installation", "check_torch", 70),
    Check(("disk",), "machine", "check_disk", 20),
    Check(("shared-memory",), "machine", "check_shared_memory", 20),
    Check(("clock",), "machine", "check_clock", 20),
    Check(("cores", "memory"), "machine", "check_limits", 20),
    Check(("gloo-interface",), "network", "check_gloo_interface", 20),
    Check(("nccl-interface",), "network", "check_nccl_interface", 20),
)
"""checks of machine and installation, without training"""

_SHARED_CORES = "when ranks share cores, communication takes them from computation"

TRAINING = (
    Check(
        ("parameters", "collectives", "synchronising-calls", "foreign-contexts", "export-pause"),
        "harmless",
        "check_unchanged",
        120,
        trains=True,
    ),
    Check(("step-time", "parts-of-step", "after-the-window"), "timed", "check_steps", 120, trains=True, alone=True),
    Check(("unused-parameters",), "counted", "check_rotating_branches", 60, trains=True),
    Check(("amp-steps",), "counted", "check_amp_steps", 60, trains=True),
    Check(("closure-steps",), "counted", "check_closure_steps", 60, trains=True),
    Check(("compiled-steps",), "counted", "check_compiled_steps", 120, trains=True),
    Check(
        ("graph-memory",),
        "counted",
        "check_graph_replay",
        120,
        trains=True,
        least_gpus=1,
        why_gpus="graphs are only replayed on a GPU",
    ),
    Check(
        ("beside-nsys",), "fabric", "check_beside_nsys", 120, trains=True, least_gpus=1, why_gpus="nsys profiles GPUs"
    ),
    Check(("delay",), "timed", "check_delay", 90, trains=True, alone=True, least_ranks=2),
    Check(("bucket-bytes", "bucket-times"), "timed", "check_buckets", 90, trains=True, alone=True, least_ranks=2),
    Check(("replay",), "timed", "check_replay", 120, trains=True, alone=True, least_ranks=2),
    Check(("netbench",), "fabric", "check_netbench", 200, trains=True, alone=True, least_ranks=2),
    Check(
        ("exposed",),
        "fabric",
        "check_exposed",
        120,
        trains=True,
        alone=True,
        least_ranks=2,
        least_gpus=2,
        why_gpus=_SHARED_CORES,
    ),
    Check(
        ("overhead",),
        "fabric",
        "check_overhead",
        420,
        trains=True,
        alone=True,
        least_ranks=2,
        least_gpus=2,
        why_gpus="it takes minutes, and is most informative on GPUs",
    ),
    Check(("exception",), "endings", "check_exception", 180, trains=True, least_ranks=2),
    Check(("ctrl-c",), "endings", "check_ctrl_c", 180, trains=True),
    Check(("sigterm",), "endings", "check_sigterm", 180, trains=True),
)
"""acceptance tests of the recorder, with scripts that know nothing of ddpprof"""

NAMES = tuple(name for check in (*MACHINE, *TRAINING) for name in check.names)
