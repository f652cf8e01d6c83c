"""Integers of recorded files that fit into a column."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Int64 = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
"""integer that fits into int64, as does the sum of two"""
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
