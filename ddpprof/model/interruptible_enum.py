"""Enumerations whose members NumPy compares with columns, without losing a Ctrl-C."""

from __future__ import annotations

from enum import EnumType


class InterruptibleEnum(EnumType):
    """Metaclass of an enumeration that runs no Python code where NumPy asks its members for ``__array_ufunc__``.

    Before Python 3.12, `EnumType` has a ``__getattr__`` written in Python. The exception of a signal may be raised in
    it, and NumPy takes any exception for a missing attribute.
    """

    __getattr__ = type.__getattribute__
