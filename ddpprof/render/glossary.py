"""Definitions of all terms, for ``ddpprof explain``, HTML pages and the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddpprof.errors import nearest_words
from ddpprof.layout import Definition


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    definition: str
    formula: str = ""
    field: str = ""
    """path of the value in the JSON report"""
    aliases: tuple[str, ...] = ()
    """other names of the term, including table columns"""
    change: str = ""
    """change that a finding suggests"""


TERMS = (
    Term(
        "step",
        "One iteration of the training loop, from one optimizer step to the next; in a trace, ProfilerStep#k. On a "
        "GPU, a kernel belongs to the step that launched it, even if it runs during another step.",
        field="ranks[].steps[].duration_ns",
        aliases=("step ms", "ProfilerStep"),
    ),
    Term(
        "profiled step",
        "A step recorded with torch.profiler, which shows every kernel but makes the step slightly longer (see "
        "ddpprof's own cost). ddpprof trace --steps sets the number of these steps.",
        field="ranks[].steps[]",
        aliases=("profiled steps", "profiled"),
    ),
    Term(
        "host time",
        "Times at which the training thread works. With an accelerator, the thread only launches work that runs later, "
        "so the duration of a launch is not the duration of the work. On CPU, the training thread does the work "
        "itself.",
        field="times",
        aliases=("launch time", "host", "of the host"),
    ),
    Term(
        "device time",
        "Times at which the accelerator works, from the kernels in the trace, converted to the host's clock. Without a "
        "trace, these times are unknown: profile the job with ddpprof trace.",
        field="times",
        aliases=("device", "of the device"),
    ),
    Term(
        "compute",
        "Accelerator kernels that neither communicate nor copy; on CPU, the ops of the training thread, excluding "
        "their waits for collectives.",
        field="ranks[].steps[].compute_ns",
        aliases=("computation",),
    ),
    Term(
        "communication",
        "Kernels of NCCL, RCCL, oneCCL or HCCL; on CPU, gloo's collectives. Time in which several of them run at once "
        "counts only once.",
        field="ranks[].steps[].comm_ns",
        aliases=("comm", "collective"),
    ),
    Term(
        "gradient communication",
        "Communication that DDP's reducer launches in the backward pass to average gradients. Broadcasts of buffers, "
        "SyncBatchNorm and the script's own collectives are other communication.",
    ),
    Term(
        "hidden",
        "Share of communication that overlaps with computation, and therefore adds no time to the step.",
        formula="|communication AND compute| / |communication|",
        field="ranks[].steps[].overlap_ns",
        aliases=("overlap", "hidden communication"),
    ),
    Term(
        "exposed",
        "Communication that does not overlap with computation, and therefore adds time to the step.",
        formula="|communication| - |communication AND compute|",
        field="ranks[].steps[].exposed_ns",
        aliases=("exposed communication", "exposed comm"),
    ),
    Term(
        "trailing",
        "Gradient communication between the last op of a backward pass and the first op of the optimizer or the "
        "next forward pass, when no computation is left to hide it. It is mostly the all-reduce of the last bucket. If "
        "a step has several backward passes, their trailing times are added.",
        formula="|gradient communication AND [end of a backward pass, start of the next forward pass or optimizer)|",
        field="ranks[].steps[].trailing_ns",
        aliases=("trailing communication",),
    ),
    Term(
        "step bar",
        "Eight parts that add up to the step. Computation takes precedence and is split by what launched it (forward, "
        "backward, optimizer, other). Exposed communication, copies and waiting for data follow. The rest is idle. "
        "On an accelerator, communication that continues into the next step is part of the next step's bar; exposed "
        "communication is counted in the step that launched it.",
        field="ranks[].steps[].parts",
        aliases=("forward", "backward", "optimizer", "data", "other", "copies", "data, other", "parts"),
    ),
    Term(
        "idle",
        "Time during which nothing runs on the device. The host is late if the next kernel had not been launched when "
        "the gap began. If the host was waiting for a result from the device when the gap began, as in loss.item(), "
        "the gap is due to a host read. The device waits for communication if the gap follows or precedes "
        "communication.",
        field="ranks[].steps[].parts.idle_ns",
        aliases=(
            "time between operations",
            "largest cost",
            "launch bound",
            "host is late",
            "host reads",
            "waits for comm",
        ),
    ),
    Term(
        "bucket",
        "Gradients that DDP all-reduces together in one message. A bucket is ready when its last gradient has been "
        "computed, and launched when the reducer passes it to the backend. Then its all-reduce starts and finishes. "
        "Buckets are launched in index order, so a ready bucket waits for the buckets before it. Set the bucket size "
        "with DistributedDataParallel(bucket_cap_mb=...).",
        field="buckets[]",
        aliases=("gradient bucket", "ready", "launched", "started", "finished", "bucket_cap_mb", "bucket_cap_mb_list"),
    ),
    Term(
        "compiled graph",
        "Part of a model that torch.compile compiles as a unit. All its gradients become ready when its backward pass "
        "ends. With optimize_ddp=ddp_optimizer, torch.compile splits the model under DDP into several graphs, so that "
        "buckets can be sent earlier.",
        field="compiled_graphs",
        aliases=("graphs", "Compiled", "optimize_ddp"),
    ),
    Term(
        "buffers",
        "Tensors of a module that are not parameters, such as the running mean and variance of BatchNorm. DDP "
        "broadcasts them from rank 0 before each forward pass, and all ranks wait for the broadcast. If ranks may have "
        "different buffers, disable it with DistributedDataParallel(forward_sync_buffers=False); before torch 2.13 "
        "the argument is called broadcast_buffers.",
        aliases=("buffer", "BatchNorm", "forward_sync_buffers", "broadcast_buffers", "buffer sync"),
    ),
    Term(
        "late",
        "The rank that launches a bucket last in most steps, and its delay relative to the first rank.",
        field="buckets[].late_rank",
    ),
    Term(
        "transfer",
        "The shortest duration of a collective over all ranks. This is its duration on the rank that arrives last, "
        "which does not wait.",
        field="across.collectives[].transfer_ns",
    ),
    Term(
        "waiting",
        "Time that a rank spends in a collective waiting for the last rank to arrive.",
        formula="duration on the rank - transfer",
        field="across.waiting[]",
        aliases=("waits", "waits per step"),
    ),
    Term(
        "algbw",
        "Algorithm bandwidth: message size divided by transfer time, in GB/s (10⁹ bytes). If a rank runs k "
        "collectives at the same time, each is assigned 1/k of that time.",
        formula="bytes / transfer",
        field="across.collectives[].algbw_bytes_per_s",
        aliases=("algorithm bandwidth",),
    ),
    Term(
        "busbw",
        "Bus bandwidth as defined by nccl-tests: the rate at which the link transfers data. It can be compared with "
        "the hardware's bandwidth for any number of ranks n.",
        formula="algbw × 2(n-1)/n for all-reduce, × (n-1)/n for all-gather and reduce-scatter, × 1 for broadcast",
        field="across.collectives[].busbw_bytes_per_s",
        aliases=("bus bandwidth",),
    ),
    Term(
        "link limit",
        "The speed of the network interface or InfiniBand ports through which the ranks of several machines "
        "communicate, as reported by the machines or given with --link-speed. The report shows the share of this speed "
        "that the largest all-reduces reach. TCP overhead is about 4 % of this speed.",
        formula="share = 8 × busbw / limit",
        field="link_limit.limit_bits_per_s",
        aliases=("link speed",),
    ),
    Term(
        "straggler",
        "A rank that takes longer than the other ranks from one synchronization to the next, excluding the time it "
        "waits for other ranks. A rank is reported only if the difference is significant (p < 1 %).",
        field="across.stragglers",
        aliases=("arrives last",),
    ),
    Term(
        "common clock",
        "A collective ends at the same time on all ranks, so its end times show the offset of each host's clock from "
        "the first host's clock. The first ± is the noise of the offset. The second ± is a bound from causality: a "
        "collective cannot end on one rank before it has started on all ranks.",
        field="across.clock",
        aliases=("clocks", "clock"),
    ),
    Term(
        "overlap slowdown",
        "How much communication slows concurrent computation: the duration of a kernel (same name, launch shape and "
        "input shapes) while communication covers at least half of it, divided by its duration without "
        "communication.",
        formula="median duration during communication / median duration alone",
        field="overlap_slowdown",
        aliases=("slowdown", "slowed"),
    ),
    Term(
        "DDP's own work",
        "Time that the training thread spends in DDP's pre-forward (buffer sync, bookkeeping), search for unused "
        "parameters, gradient copies into buckets and back, launches and finalization, excluding waits for "
        "communication.",
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
        "The duration of a step with DDP, divided by the duration of a step of the same module without DDP. ddpprof "
        "overhead train.py measures both in one process that alternates between blocks of steps with and without DDP.",
        aliases=("overhead",),
    ),
    Term(
        "light recording",
        "Recording of the times of steps, forward passes and buckets, without the profiler and therefore without "
        "kernels.",
        field="ranks[].light_steps[]",
        aliases=("light", "lightly recorded"),
    ),
    Term(
        "baseline steps",
        "Steps without gradient communication, recorded as a reference for kernels and predictions: ddpprof trace "
        "--baseline-steps 5. The ranks' parameters diverge in these steps, so the job ends after them.",
        aliases=("baseline",),
    ),
    Term(
        "ddpprof's own cost",
        "The duration of a recorded step divided by the duration of a step without recording. The two "
        "kinds of steps alternate before the profiled steps.",
        field="ranks[].recording_cost",
        aliases=("recording cost", "recording overhead"),
    ),
    Term(
        "gain",
        "The time per step that a change could save. If the recorded steps can be replayed with only that change, as "
        "ddpprof whatif does, the gain is predicted, with a 95 % interval. Otherwise, the gain is an upper bound ('up "
        "to'). If no gain is given, this run does not show how large it is. Gains do not add up, because two findings "
        "may explain the same milliseconds.",
        field="findings[].gain_ns",
        aliases=("finding", "findings", "measured", "not measured", "gain not measured"),
    ),
    Term(
        "replay",
        "A simulation of the recorded steps, gradient by gradient and bucket by bucket, with other settings. All "
        "predictions are from replays. ddpprof whatif also replays the run with its own settings, to show the error.",
        field="findings[].predicted",
        aliases=("predicted", "prediction", "predicted gain", "whatif"),
    ),
    Term(
        "pulse",
        "The data that each rank records during the whole run, in a file that other processes can read: its current "
        "activity, and the durations and phases of its steps. ddpprof top, capture, diagnose and --metrics read it. "
        "ddpprof watch records only the pulse.",
        field="whole_run",
        aliases=("whole run",),
    ),
    Term(
        "own time",
        "The step time of a rank minus the time it waits for other ranks. Step times are about equal on all ranks, "
        "because the ranks wait for each other. Own times show which rank is slow. On an accelerator, waiting time and "
        "own time are unknown.",
        formula="step - waiting",
        field="whole_run.ranks[].whole.wait_ns",
        aliases=("own", "own ms"),
    ),
    Term(
        "verdict",
        "The diagnosis of a job that hangs or has failed: the rank at fault, the reason, the line of code that this "
        "rank is executing, and the ranks that wait for it. ddpprof diagnose prints it. ddpprof watch and ddpprof "
        "trace print it as soon as a job hangs.",
        aliases=("hang", "diagnose"),
    ),
    Term(
        "capture",
        "Steps of a running job that are profiled on all ranks when you call ddpprof capture. Each capture is a run of "
        "its own, in a subdirectory of the job's run: capture-1, capture-2 and so on.",
    ),
    Term(
        "outside DDP",
        "Collectives that the script calls itself, for example to average parameters or metrics, or as a barrier. "
        "They are exposed while neither computation nor DDP's communication runs.",
        field="outside",
    ),
    Term(
        "memory",
        "Host memory of each process, and memory of tensors on its GPUs: at the end of recorded steps (steady), and "
        "the maximum since the process started (peak). CUDA contexts on GPUs of other ranks are also listed.",
        field="memory",
        aliases=("steady", "peak", "reserved"),
    ),
    Term(
        "not beyond noise",
        "A finding that might be missing from another run of the same job. A predicted gain counts as noise if its 95 "
        "% interval extends below 0, or if it is below the noise of the step (half the width of the 95 % interval "
        "of the step time) and its own interval includes values below half of the predicted gain. A measured gain "
        "counts as noise if it is below 1.5 % of the step or 5 µs, or if other work on the same cores could explain "
        "it. Such findings are listed last, without advice.",
        field="findings[].is_noise",
        aliases=("noise", "beyond noise", "may save"),
    ),
    Term(
        "verdict of ddpprof try",
        "Result of running the job with and without a change. Confirmed: the step became shorter by more than noise, "
        "and the gain reaches the predicted interval. Smaller than promised: the step became shorter, but by less than "
        "predicted. No difference: any gain is below half of the prediction or 1 % of the step. Slower: the step "
        "became longer by more than noise. Cannot tell: more rounds are needed. Changes the losses: the losses "
        "changed, although the change should not affect them. Failed: a trial with the change ended with an error or "
        "did not end.",
        field="findings[].measured.outcome",
        aliases=(
            "confirmed",
            "smaller than promised",
            "no difference",
            "slower",
            "cannot tell",
            "changes the losses",
            "promised",
        ),
    ),
    Term(
        "lossy",
        "A change that alters what training computes, such as sending gradients in half precision. It is listed after "
        "all changes that keep the results, and ddpprof try and tune apply it only with --allow-lossy. Check that the "
        "model trains equally well with the change: in fp16, gradients below 3e-8 become zero.",
        field="findings[].change.is_lossy",
        aliases=("allow lossy", "rounds gradients"),
    ),
    Term(
        "worth trying",
        "A finding with a predicted gain of at least 5 % of the step, but a 95 % interval that extends below 0, "
        "because the run does not show enough about the network. It is never the first fix. Use ddpprof try to "
        "measure the gain.",
        field="findings[].is_worth_trying",
    ),
    Term(
        "Horovod",
        "Data from a Horovod timeline, per step: collectives, fusion-buffer copies, waiting for ranks or for the next "
        "cycle, and late ranks. A timeline does not contain computation, so it does not show overlap.",
        field="horovod",
        aliases=("negotiation", "fusion buffer"),
    ),
    Term(
        "DataParallel",
        "Data transfers of nn.DataParallel between the accelerators of one process, and the load of each accelerator. "
        "ddpprof trace train.py records such a process like a single-rank job.",
        field="data_parallel",
        aliases=("replicate", "scatter", "gather"),
    ),
    Term(
        "without torch's DDP",
        "Gradients that are all-reduced during the backward pass by hooks other than DDP's, such as Apex's "
        "DistributedDataParallel. Reports on torch.profiler traces include them, with buckets and with exposed and "
        "trailing time. Gradients sent after the backward pass are not included.",
        field="own_reduction",
        aliases=("Apex",),
    ),
    Term(
        "RPC",
        "Calls through torch.distributed.rpc (rpc_sync, rpc_async) by the ranks that train with DDP: latency measured "
        "by the caller, and bytes of tensors. They are not part of DDP's communication.",
        field="rpc",
        aliases=("latency",),
    ),
)


@cache
def findings() -> Mapping[str, Term]:
    """Return all findings by their names, from the page ``docs/reference/findings.md``, which the wheel contains."""
    package = Path(__file__).parents[1]
    pages = (package / "findings.md", package.parent / "docs" / "reference" / "findings.md")
    text = next((page.read_text(encoding="utf-8") for page in pages if page.is_file()), "")
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (.*) \| (.*) \|$", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text), re.MULTILINE
    )
    return {name: Term(name, _condition(condition), change=change) for name, condition, change in rows}


def _condition(cell: str) -> str:
    what, colon, condition = cell.partition("*correctness*: ")
    return f"A finding about correctness. Reported if {condition}." if colon else f"A finding. Reported if {what}."


def find_term(words: str) -> Term | None:
    """Return the term with this name or alias, ignoring case, hyphens and underscores; ``None`` if there is none."""
    return _BY_NAME.get(_key(words))


def find_finding(words: str) -> Term | None:
    """Return the finding with this name, ignoring case, hyphens and underscores; ``None`` if there is none."""
    return _by_key(findings().values()).get(_key(words))


def similar_terms(words: str) -> tuple[str, ...]:
    """Return the names of terms and findings that are spelled similarly."""
    known = {**_by_key(findings().values()), **_BY_NAME}
    return tuple(dict.fromkeys(known[name].name for name in nearest_words(_key(words), known, 3)))


def term_sections(terms: Iterable[Term]) -> Iterable[Definition]:
    for term in terms:
        yield Definition(
            term.name,
            term.definition,
            tuple(
                (what, text)
                for what, text in (
                    ("formula", term.formula),
                    ("the change", term.change),
                    ("in the JSON report", term.field),
                    ("also", ", ".join(name for name in term.aliases if "," not in name)),
                )
                if text
            ),
        )


def _key(words: str) -> str:
    return " ".join(words.replace("-", " ").replace("_", " ").lower().split())


def _by_key(terms: Iterable[Term]) -> dict[str, Term]:
    return {_key(name): term for term in terms for name in (term.name, *term.aliases)}


_BY_NAME = _by_key(TERMS)
