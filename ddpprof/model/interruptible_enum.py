"""Enumerations whose members NumPy can compare with columns without losing a Ctrl-C."""

from __future__ import annotations

from enum import EnumType


class InterruptibleEnum(EnumType):
    """Metaclass of an enumeration that runs no Python code when NumPy looks up ``__array_ufunc__`` on its members.

    Before Python 3.12, `EnumType` has a ``__getattr__`` written in Python. A signal's exception may be raised inside
    it, and NumPy takes any exception for a missing attribute.
    """

    __getattr__ = type.__getattribute__
