"""mkdocstrings extension that shows the values of defaults that a signature takes from `Settings`."""

from __future__ import annotations

from typing import Any

import griffe

from ddpprof.record.settings import Settings


class DefaultsOfSettings(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            owner, _, name = str(parameter.default).rpartition(".")
            if owner == "Settings":
                parameter.default = repr(getattr(Settings, name))
