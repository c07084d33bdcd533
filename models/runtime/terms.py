"""Computing a version that counts terms: texts to counts here, counts through a graph.

Of a text the graph is given the columns that it has and how often, not the whole row of the table:
a linear model of a hundred thousand words then reads as many weights as the text has words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from models.computed import computed_manifest
from models.errors import InputRefused, LoadFailed, RunFailed, RunTooLarge
from models.memory import trim
from models.runtime.outputs import Outputs
from models.runtime.term_counts import Counts, TermCounter, open_counters, text_of
from models.runtime.terminations import Terminations
from models.runtime.warm_up import warmed
from models.servable import Array, Loader, LoadSpec, Servable
from models.signature import Signature
from models.terms_form import TermsForm, parse_terms_form
from registry.ident import shown

# Of one run of the graph: its memory grows with them, most where it makes the whole table.
_RUN_CELLS: Final = 1 << 21
# What an entry costs beside a cell of the table: a linear model reads a weight for each class.
_ENTRY_CELLS: Final = 16


class TermsLoader:
    """Loads versions that count terms; ``loader_of`` gives the loader of a runtime by its name."""

    def __init__(self, loader_of: Callable[[object], Loader]) -> None:
        self._loader_of = loader_of

    def load(self, spec: LoadSpec) -> TermsServable:
        """Open vocabularies and graph and warm them up, or raise LoadFailed."""
        form = parse_terms_form(spec.manifest)
        signature = spec.inspection.signature
        check_signature(signature, form)
        counters = open_counters(form, spec.objects_dir)
        inner = replace(
            spec,
            manifest=computed_manifest(spec.manifest),
            inspection=replace(
                spec.inspection, signature=Signature(form.graph.inputs, signature.outputs)
            ),
        )
        graph = self._loader_of(form.engine.get("name")).load(inner)
        return warmed(TermsServable(counters, graph, form, signature))


def check_signature(signature: Signature, form: TermsForm) -> None:
    """Raise LoadFailed unless the signature is that of the graph, with texts for their counts."""
    served = {spec.name: spec for spec in signature.inputs}
    counted = {item.tensor for item in form.inputs}
    for item in form.inputs:
        spec = served.get(item.name)
        if spec is None or spec.datatype != "BYTES" or spec.shape not in ((-1,), (-1, 1)):
            raise LoadFailed(
                f"signature.inputs: {shown(item.name)} must be BYTES of shape [-1] or [-1, 1]"
            )
    passed = {spec.name: spec.datatype for spec in form.graph.inputs if spec.name not in counted}
    wanted = served.keys() - {item.name for item in form.inputs}
    for name in sorted(passed.keys() | wanted):
        mine = served.get(name)
        if mine is None or passed.get(name) != mine.datatype:
            raise LoadFailed(f"signature.inputs: {shown(name)} is not what the graph takes")
    given = [(spec.name, spec.datatype) for spec in form.graph.outputs]
    if given != [(spec.name, spec.datatype) for spec in signature.outputs]:
        raise LoadFailed("signature.outputs are not those of the graph")


class TermsServable:
    """Counters and a graph. ``run`` may be called from any thread, several at a time."""

    def __init__(
        self,
        counters: Sequence[TermCounter],
        graph: Servable,
        form: TermsForm,
        signature: Signature,
    ) -> None:
        self._counters = list(zip(form.inputs, counters, strict=True))
        self._graph = graph
        self._signature = signature
        self._outputs = Outputs(signature)
        counted = {item.tensor for item in form.inputs}
        self._passed = [spec.name for spec in form.graph.inputs if spec.name not in counted]
        self._row_cells = sum(item.columns for item in form.inputs) if form.is_dense else 0
        self._terminations = Terminations()

    @property
    def signature(self) -> Signature:
        """What ``run`` takes and gives."""
        return self._signature

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Compute ``outputs``; raises InputRefused, RunFailed or RunTerminated."""
        names = self._outputs.chosen(outputs)
        rows = self._rows(inputs)
        if not rows:
            return self._outputs.no_rows(names)
        if not names:
            return []
        check = self._terminations.begin()
        try:
            counted = [
                [counter.count(text_of(element, item.name, place), check)
                 for place, element in enumerate(inputs[item.name].ravel().tolist())]
                for item, counter in self._counters
            ]  # fmt: skip
        except MemoryError:
            raise RunTooLarge("not enough memory for this input: its texts are too long") from None
        parts = []
        for part in self._runs(counted, rows):
            check()
            parts.append(self._graph.run(self._feeds(inputs, counted, part), names))
            if any(len(array) != part.stop - part.start for array in parts[-1]):
                raise RunFailed("the graph answers another number of rows than it is asked")
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def terminate(self) -> None:
        """End all runs under way; each raises RunTerminated. Later runs are not affected."""
        self._terminations.end_all()
        self._graph.terminate()

    def close(self) -> None:
        """Give back all memory. No run may be under way. A second call does nothing."""
        self._graph.close()
        self._counters = []
        trim()

    def _rows(self, inputs: Mapping[str, Array]) -> int:
        """Return how many rows there are, or raise InputRefused."""
        for spec in self._signature.inputs:
            array = inputs.get(spec.name)
            if array is None:
                raise InputRefused(f"input {spec.name!r} is missing")
            is_text = spec.datatype == "BYTES"
            if array.ndim != len(spec.shape) or (is_text and array.dtype != object):
                raise InputRefused(
                    f"input {spec.name!r}: got {array.dtype} of shape {list(array.shape)}, "
                    f"expected {spec.datatype} of shape {list(spec.shape)}"
                )
            if spec.shape[1:] == (1,) and array.shape[1] != 1:
                raise InputRefused(
                    f"input {spec.name!r}: got shape {list(array.shape)}, "
                    f"expected {list(spec.shape)}"
                )
        if len(inputs) > len(self._signature.inputs):
            known = {spec.name for spec in self._signature.inputs}
            raise InputRefused(f"input {shown(min(set(inputs) - known))} is unknown")
        counts = {name: len(array) for name, array in inputs.items()}
        if len(set(counts.values())) != 1:
            raise InputRefused(f"inputs have different numbers of rows: {shown(counts)}")
        return next(iter(counts.values()))

    def _runs(self, counted: Sequence[Sequence[Counts]], rows: int) -> Iterator[slice]:
        """Yield the rows of each run of the graph, so few that its tables stay small."""
        start = longest = 0
        for row in range(rows):
            entries = max(len(counts[row]) for counts in counted)
            grown = max(longest, entries)
            cells = (row + 1 - start) * (self._row_cells + _ENTRY_CELLS * grown)
            if row > start and cells > _RUN_CELLS:
                yield slice(start, row)
                start, grown = row, entries
            longest = grown
        yield slice(start, rows)

    def _feeds(
        self, inputs: Mapping[str, Array], counted: Sequence[Sequence[Counts]], part: slice
    ) -> dict[str, Array]:
        feeds = {name: inputs[name][part] for name in self._passed}
        for (item, _), counts in zip(self._counters, counted, strict=True):
            feeds[item.tensor] = _tensor(counts[part], item.columns)
        return feeds


def _tensor(counted: Sequence[Counts], columns: int) -> Array:
    """Return counts as ``(rows, entries, 2)`` int64, rows filled up with column ``columns``."""
    longest = max(1, *map(len, counted))
    tensor = np.zeros((len(counted), longest, 2), np.int64)
    tensor[:, :, 0] = columns
    for row, counts in zip(tensor, counted, strict=True):
        count = len(counts)
        row[:count, 0] = list(counts)
        row[:count, 1] = list(counts.values())
    return tensor
