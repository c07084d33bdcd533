"""Which outputs a run is to give, and what they are where there is no row to compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.errors import InputRefused
from models.servable import Array, numpy_dtype
from models.signature import Signature
from registry.ident import shown


class Outputs:
    """The outputs of a signature."""

    def __init__(self, signature: Signature) -> None:
        self._specs = {spec.name: spec for spec in signature.outputs}
        self._names = tuple(self._specs)
        self._dtypes = {name: numpy_dtype(spec.datatype) for name, spec in self._specs.items()}

    def chosen(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the outputs that a caller named, all for None; raises InputRefused."""
        if names is None:
            return self._names
        for name in names:
            if name not in self._specs:
                raise InputRefused(f"output {shown(name)} is unknown")
        return tuple(names)

    def typed(self, name: str, array: Array) -> Array:
        """Return an answer in the datatype that the signature says, copied only if it must be."""
        return np.asarray(array, dtype=self._dtypes[name], order="C")

    def no_rows(self, names: Sequence[str]) -> list[Array]:
        """Return the answer to no rows: nothing is computed for them."""
        return [
            np.empty((0, *(max(size, 0) for size in self._specs[name].shape[1:])),
                     self._dtypes[name])
            for name in names
        ]  # fmt: skip
