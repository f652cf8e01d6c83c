"""What the terms mean: the one source of ``ddpprof explain``, the page's definitions and the README's table."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from ddpprof.report.side_streets import SIDE_STREETS


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    definition: str
    formula: str = ""
    field: str = ""
    """where the JSON report has it"""
    aliases: tuple[str, ...] = ()
    """other names, and columns of tables that show it"""


TERMS = (
    Term(
        "step",
        "One turn of the training loop, from one optimizer step to the next; in a trace, ProfilerStep#k. On a GPU a "
        "kernel belongs to the step that launched it, not to the one during which it happens to run.",
        field="ranks[].steps[].duration_ns",
        aliases=("step ms", "ProfilerStep"),
    ),
    Term(
        "host time",
        "When, and how long, the training thread worked: for an accelerator it launches work that is done later, so "
        "that the length of a launch is not that of the work. On CPU it does the work itself.",
        field="times",
        aliases=("launch time", "host", "of the host"),
    ),
    Term(
        "device time",
        "When, and how long, the accelerator worked, as kernels in the trace say, on the host's clock. Without a trace "
        "it is not known: profile the job with ddpprof trace.",
        field="times",
        aliases=("device", "of the device"),
    ),
    Term(
        "compute",
        "Accelerator kernels that neither communicate nor copy; on CPU, the ops of the training thread.",
        field="ranks[].steps[].compute_ns",
        aliases=("computation",),
    ),
    Term(
        "communication",
        "Kernels of NCCL, RCCL, oneCCL, HCCL; on CPU, gloo's spans. Several at once count once.",
        field="ranks[].steps[].comm_ns",
        aliases=("comm", "collective"),
    ),
    Term(
        "gradient communication",
        "Communication that DDP's reducer launches in the backward pass to average gradients. Broadcasts of buffers, "
        "SyncBatchNorm and collectives of the script's own are other communication.",
    ),
    Term(
        "hidden",
        "The share of communication under which computation runs: time that communication does not cost.",
        formula="|communication AND compute| / |communication|",
        field="ranks[].steps[].overlap_ns",
        aliases=("overlap", "hidden communication"),
    ),
    Term(
        "exposed",
        "Communication under which nothing is computed: what it adds to the step.",
        formula="|communication| - |communication AND compute|",
        field="ranks[].steps[].exposed_ns",
        aliases=("exposed communication", "exposed comm"),
    ),
    Term(
        "trailing",
        "Gradient communication between the last op of a backward pass and the first of the optimizer or of the next "
        "forward: nothing is left to hide it behind. The last bucket's all-reduce mostly ends up here. If a step has "
        "several backward passes, it is their sum.",
        formula="|gradient communication AND [end of a backward pass, start of the next forward or optimizer)|",
        field="ranks[].steps[].trailing_ns",
        aliases=("trailing communication",),
    ),
    Term(
        "step bar",
        "Seven parts that add up to the step. Compute counts first, by what launched it (forward, backward, "
        "optimizer, other), then communication that no compute hides, copies, waiting for data; what is left is idle.",
        field="ranks[].steps[].parts",
        aliases=("forward", "backward", "optimizer", "data", "other", "data, other", "parts"),
    ),
    Term(
        "idle",
        "Nothing runs on the device. The host is late: the kernel that ends the gap had not been launched. Waits for "
        "communication: it follows communication, or is some.",
        field="ranks[].steps[].parts.idle_ns",
        aliases=("launch bound", "host is late", "waits for comm"),
    ),
    Term(
        "bucket",
        "Gradients that DDP all-reduces together, in one message. It is ready when its last gradient is there, "
        "launched when the reducer hands it to the backend, then started and finished. Buckets are launched strictly "
        "in index order: one that is ready waits for those before it. Size: "
        "DistributedDataParallel(bucket_cap_mb=...).",
        field="buckets[]",
        aliases=("gradient bucket", "ready", "launched", "started", "finished", "bucket_cap_mb"),
    ),
    Term(
        "late",
        "The rank that launches a bucket last in most steps, and how long after the first one.",
        field="buckets[].late_rank",
    ),
    Term(
        "transfer",
        "The shortest duration of a collective over the ranks: that of a rank for which all others are there already.",
        field="across.collectives[].transfer_ns",
    ),
    Term(
        "waiting",
        "What a collective takes longer on a rank than its transfer: the rank waits for the last one.",
        formula="duration on the rank - transfer",
        field="across.waiting[]",
        aliases=("waits", "waits per step"),
    ),
    Term(
        "algbw",
        "Algorithm bandwidth: message size by transfer time, in GB/s (10⁹ bytes). While a rank runs k collectives at "
        "once, each gets 1/k of the time.",
        formula="bytes / transfer",
        field="across.collectives[].algbw_bytes_per_s",
        aliases=("algorithm bandwidth",),
    ),
    Term(
        "busbw",
        "Bus bandwidth: what the link carries, as nccl-tests defines it, so that it can be compared with the "
        "hardware's for any number of ranks n.",
        formula="algbw × 2(n-1)/n for all-reduce, × (n-1)/n for all-gather and reduce-scatter, × 1 for broadcast",
        field="across.collectives[].busbw_bytes_per_s",
        aliases=("bus bandwidth",),
    ),
    Term(
        "straggler",
        "The rank that needs most time of its own, without waiting for others, from one synchronisation to the next; "
        "named only where chance would show it in less than 1 % of runs.",
        field="across.stragglers",
        aliases=("last to come",),
    ),
    Term(
        "common clock",
        "Collectives end together on all ranks: what each host's clock shows more than the first one's follows from "
        "their ends. Its noise is the first ±; the second is what causality allows, as no collective ends on one rank "
        "before it has begun on all.",
        field="across.clock",
        aliases=("clocks", "clock"),
    ),
    Term(
        "slowdown",
        "What communication does to the computation beside it: the same kernel (name, launch shape, input shapes) "
        "while communication covers at least half of it, over its time with none beside it.",
        formula="median duration under communication / median duration alone",
        field="slowdown",
        aliases=("overlap slowdown", "slowed"),
    ),
    Term(
        "DDP's own work",
        "Time of the training thread in DDP's pre-forward (buffer sync, bookkeeping), search for unused parameters, "
        "copies of gradients into buckets and back, launches and finalisation, without waiting for communication.",
        field="ranks[].steps[].wrapper",
        aliases=(
            "wrapper",
            "wrapper overhead",
            "pre-forward",
            "unused search",
            "copy in",
            "launch",
            "copy out",
            "finalise",
        ),
    ),
    Term(
        "measured overhead",
        "The step with DDP over the step of the same module without it, in one process, blocks of steps taking turns: "
        "ddpprof overhead train.py.",
        aliases=("overhead",),
    ),
    Term(
        "light recording",
        "Times of steps, forwards and buckets, without the profiler and without kernels.",
        field="ranks[].light_steps[]",
        aliases=("light", "lightly recorded"),
    ),
    Term(
        "baseline steps",
        "Steps without gradient communication, to compare kernels with, and to predict from: ddpprof trace "
        "--baseline-steps 5. They spoil the training, so that the job ends with them.",
        aliases=("baseline",),
    ),
    Term(
        "ddpprof's own cost",
        "A recorded step over one with recording off, in turns before the profiled steps of every run.",
        field="ranks[].recording_cost",
        aliases=("recording cost",),
    ),
    Term(
        "gain",
        "What a finding could give back per step: predicted, with a 95 % interval, by replaying the recorded steps "
        "with just that change, as ddpprof whatif does; else at most (up to). Two findings may explain the same "
        "milliseconds: gains do not add up.",
        field="findings[].gain_ns",
        aliases=("finding", "findings"),
    ),
    Term(
        "beside DDP",
        "Collectives that the script itself asks for: parameters averaged by hand, metrics, barriers. Exposed: "
        "neither computation nor DDP's communication runs beside them.",
        field="outside",
    ),
    Term(
        "memory",
        "Of each process, and in tensors on its GPUs: at the end of recorded steps (steady), and at most since it "
        "began (peak). A context on a GPU that is not the rank's own is named.",
        field="memory",
        aliases=("steady", "peak", "reserved"),
    ),
    *(Term(street.name, street.meaning, field=street.report_field, aliases=street.aliases) for street in SIDE_STREETS),
)


def find_term(words: str) -> Term | None:
    """By its name or another one, however it is written; ``None`` where there is none."""
    return _BY_NAME.get(_key(words))


def similar_terms(words: str) -> tuple[str, ...]:
    """Names that are written much like it."""
    close = get_close_matches(_key(words), _BY_NAME, n=3)
    return tuple(dict.fromkeys(_BY_NAME[name].name for name in close))


def _key(words: str) -> str:
    return " ".join(words.replace("-", " ").replace("_", " ").lower().split())


_BY_NAME = {_key(name): term for term in TERMS for name in (term.name, *term.aliases)}
