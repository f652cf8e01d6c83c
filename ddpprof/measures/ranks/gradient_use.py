"""Which parameters got no gradient on any rank?

Every rank sees only its own backward passes. Another rank may use a parameter that rank 0 does not use, such as an
expert of a mixture, and may lack one that rank 0 always uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from ddpprof.model import DdpModule


def as_all_ranks_use(modules: Sequence[DdpModule], ranks: Sequence[Sequence[DdpModule]]) -> tuple[DdpModule, ...]:
    """Return the modules with what holds on all ranks: ``unused`` are the parameters that no rank used.

    A rank that did not look, for example because it was killed, does not count. `ranks`: for each rank its modules as
    it saw them; all ranks have the same ones in the same order.
    """
    return tuple(
        _as_used(module, [uses[index] for uses in ranks if len(uses) == len(modules)])
        for index, module in enumerate(modules)
    )


def _as_used(module: DdpModule, ranks: Sequence[DdpModule]) -> DdpModule:
    if not ranks:
        return module
    unused = [one.unused for one in ranks if one.unused is not None]
    lacking = [one.num_lacking_passes for one in ranks if one.num_lacking_passes is not None]
    static = [one.graph_is_static for one in ranks]
    by_no_rank = set.intersection(*map(set, unused)) if unused else None
    return structs.replace(
        module,
        unused=None if by_no_rank is None else tuple(name for name in unused[0] if name in by_no_rank),
        graph_is_static=None if None in static else all(static),
        num_searched_passes=min(one.num_searched_passes for one in ranks),
        num_lacking_passes=max(lacking) if len(lacking) == len(ranks) else None,
    )
