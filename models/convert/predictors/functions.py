"""Functions of NumPy that a graph can compute; a transformer of any other function is refused."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np


class Writer(Protocol):
    """What these functions need of whoever writes the graph."""

    def add(self, op: str, *inputs: str) -> str:
        """Add one node and return its one output."""
        ...

    def number(self, values: Any) -> str:
        """Add a constant."""
        ...


def write_function(write: Writer, function: Any, tensor: str) -> str | None:
    """Return the function of each element of ``tensor``, or None where it is not known here."""
    if function is None:
        return tensor
    plain = {np.log: "Log", np.exp: "Exp", np.sqrt: "Sqrt", np.abs: "Abs", np.sin: "Sin",
             np.cos: "Cos", np.tanh: "Tanh", np.sign: "Sign", np.floor: "Floor",
             np.ceil: "Ceil", np.negative: "Neg", np.reciprocal: "Reciprocal"}  # fmt: skip
    if not isinstance(function, np.ufunc):
        return None
    if function in plain:
        return write.add(plain[function], tensor)
    if function is np.log1p:
        return write.add("Log", write.add("Add", tensor, write.number(1.0)))
    if function is np.expm1:
        return write.add("Sub", write.add("Exp", tensor), write.number(1.0))
    if function is np.square:
        return write.add("Mul", tensor, tensor)
    if function in _BASES:
        return write.add("Mul", write.add("Log", tensor), write.number(_BASES[function]))
    if function is np.exp2:
        return write.add("Exp", write.add("Mul", tensor, write.number(np.log(2.0))))
    return None


_BASES: Final = {np.log2: 1.0 / np.log(2.0), np.log10: 1.0 / np.log(10.0)}


def name_of(function: Any) -> str:
    """Return what to call a function in a message."""
    return str(getattr(function, "__qualname__", None) or getattr(function, "__name__", function))
