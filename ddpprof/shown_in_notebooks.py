"""A base class of results that display themselves: as HTML in a notebook, and as a few lines of text elsewhere."""

from __future__ import annotations

from typing import Any


class ShownInNotebooks:
    """A result that Jupyter shows as HTML and ``print`` shows as a short summary.

    `ddpprof.render.notebook` renders it.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Define `_repr_pretty_` in the subclass itself; otherwise IPython would prefer the subclass's ``__repr__``."""
        cls._repr_pretty_ = ShownInNotebooks._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        from ddpprof.render.notebook import as_html

        return as_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the summary in IPython's terminal. `cycle` is for containers that contain themselves."""
        printer.text("…" if cycle else str(self))

    def __str__(self) -> str:
        from ddpprof.render.notebook import as_text

        return as_text(self)
