"""Profiles made by hand: a step of four gradients of a MiB each, over a link that takes a ns per byte.

Times are multiples of `UNIT`, in which a MiB is sent: gradients come at 11, 12, 13 and 14. Of the recorded buckets of
two MiB one is sent from 12 to 14 and one from 14 to 16; the step takes 20, of which the last 4 are not the backward
pass's.
"""

from itertools import count
from typing import Any

from ddpprof.model.ddp_module import Caps, Gradient
from ddpprof.predict.network import Network
from ddpprof.predict.observed_steps import ObservedStep
from ddpprof.predict.profile import PassProfile, Profile
from ddpprof.predict.replay import Computed, Cost, Link, Training

UNIT = MIB = 2**20


def training(**changes: Any) -> Training:
    return Training(**{
        "gradients": tuple(Gradient(MIB, "float32", shape=(512, 512)) for _ in range(4)),
        "buckets": ((0, 1), (2, 3)), "caps": Caps.of(2), "world_size": 2, "backend": "nccl", "on_cpu": False, **changes,
    })  # fmt: skip


def network(link: Link | None = None, **changes: Any) -> Network:
    """Return a network that is known exactly."""
    return Network(**{
        "link": link or Link(Cost(0.0, 1.0)), "world_size": 2, "least_bytes": MIB, "most_bytes": 4 * MIB,
        "num_sizes": 3, "relative_error": 0.0, "is_benched": True, **changes,
    })  # fmt: skip


def profile(**changes: Any) -> Profile:
    """In `UNIT`, but for ``copied_ns_per_byte``."""
    of_step = {name: changes.pop(name, ns) * UNIT for name, ns in {"step_ns": 20.0, "step_error_ns": 0.0}.items()}
    for name in ("network", "num_steps", "knows_alone"):
        of_step |= {name: changes.pop(name)} if name in changes else {}
    return Profile(**{"passes": (pass_profile(**changes),), "network": network(), "num_steps": 4, **of_step})


def pass_profile(**changes: Any) -> PassProfile:
    times = {"replayed_ns": 16.0, "reduced_ns": 16.0, "searched_ns": 0.0}
    given = {name: changes.pop(name, ns) * UNIT for name, ns in times.items()}
    return PassProfile(**{
        "training": training(), "computed": computed(10, (11, 12, 13, 14), 14), "copied_ns_per_byte": 0.0,
        **given, **changes,
    })  # fmt: skip


def computed(forward_end: float, gradients: tuple[float | None, ...], end: float) -> Computed:
    times = tuple(None if time is None else time * UNIT for time in gradients)
    return Computed(forward_end * UNIT, times, end * UNIT)


_STEPS = count()


def observed_step(
    ready: tuple[float | None, ...], finished: dict[int, float], step: int | None = None, **changes: float
) -> ObservedStep:
    """In `UNIT`. `step`: its number; each is another step unless it is given."""
    times = {"measured_ns": 20, "backward_ns": 10, "reduced_ns": 16, **changes}
    return ObservedStep(
        ready_ns=tuple(None if time is None else time * UNIT for time in ready),
        finished_ns={index: time * UNIT for index, time in finished.items()},
        **{name: time * UNIT for name, time in times.items()},
        step=next(_STEPS) if step is None else step,
    )
