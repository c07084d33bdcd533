"""Comparing in the throwaway child: one version, opened in each form, run side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from models.computed import computed_manifest
from models.errors import InputRefused, LoadFailed, RunFailed
from models.graph_walk import is_external, tensors
from models.memory import anonymous_bytes, trim
from models.reading import read_file
from models.runtime import onnx as runtime
from models.runtime.beside import bytes_beside
from models.servable import Array
from models.signature import Signature, parse_signature
from models.synthetic import Run, first_inputs, make_inputs
from registry.ident import digest_hex
from registry.manifest import JsonObject, Manifest

_ROWS: Final = (1, 8, 32)
_TRIES: Final = 3
_ROUNDS: Final = 15
_ROUNDS_S: Final = 0.3
# Larger sizes are left out where one run of each form, or all so far, took longer than this.
_LONG_S: Final = 2.0
_ALL_S: Final = 10.0
_GOOD_RATIO: Final = 1.03
# So much slower is no noise: such a form is not measured any further.
_HOPELESS_RATIO: Final = 1.25


def compare(
    manifest: Manifest,
    objects_dir: Path,
    *,
    threads: int,
    packed_graph: str,
    packed_objects: frozenset[str] = frozenset(),
) -> JsonObject:
    """Open a version in each form and say what each takes: by name, see ``_Form.to_json``.

    Forms are ``private`` (the plain one), ``mapped`` (without packing at load) and ``packed``,
    where ``packed_graph`` is the digest of a graph that ``pack`` or ``compact`` made, and
    ``packed_objects`` are all that it may name.
    """
    beside = bytes_beside(manifest, objects_dir)
    signature = parse_signature(computed_manifest(manifest).signature)
    plain = objects_dir / digest_hex(manifest.graph)
    runtime.prime(threads)
    forms = [_Form("private", plain, signature, threads)]
    if manifest.tensors:
        forms.append(_Form("mapped", plain, signature, threads, has_prepacking=False))
    if packed_graph:
        packed = objects_dir / digest_hex(packed_graph)
        check_locations(packed, packed_objects)
        forms.append(_Form("packed", packed, signature, threads, is_packed=True))
    follows_rows = any(spec.shape and spec.shape[0] == -1 for spec in signature.inputs)
    _measure(forms, signature, _ROWS if follows_rows else _ROWS[:1], threads)
    for form in forms:
        form.private_bytes += beside
    return {form.name: form.to_json() for form in forms}


def difference_to_mapped(run: Run, signature: Signature, plain: Path, threads: int) -> float:
    """Return the largest difference of ``run`` to the plain graph without packing, as ``compare``.

    Other kernels: close to 0 where the weights are the same, and far from it where they are not.
    """
    session = runtime.open_session(plain, threads, has_prepacking=False)
    other = runtime.OnnxServable(session, signature).run
    style, expected = first_inputs(other, signature)
    return _difference(expected, run(make_inputs(signature, style, 1), None))


def check_locations(graph: Path, allowed: frozenset[str]) -> None:
    """Raise LoadFailed where a packed graph names an object that was not built for it.

    The process that wrote it had opened a graph that somebody pushed.
    """
    if runtime.is_runtime_format(graph):
        return  # it holds its weights itself
    model = onnx.ModelProto()
    model.ParseFromString(read_file(graph))
    names = {digest_hex(digest) for digest in allowed}
    for found in tensors(model, LoadFailed):
        if not is_external(found.tensor):
            continue
        fields = {entry.key: entry.value for entry in found.tensor.external_data}
        if not found.is_initializer or fields.get("location") not in names:
            raise LoadFailed(f"{found.where} of the packed graph lies in no object of its own")


class _Form:
    """One way of opening a version, and what it was measured to take."""

    def __init__(
        self,
        name: str,
        graph: Path,
        signature: Signature,
        threads: int,
        *,
        is_packed: bool = False,
        has_prepacking: bool = True,
    ) -> None:
        self.name = name
        trim()
        before, start = anonymous_bytes(), time.perf_counter()
        session = runtime.open_session(
            graph, threads, is_packed=is_packed, has_prepacking=has_prepacking
        )
        self.load_s = time.perf_counter() - start
        self.run: Run = runtime.OnnxServable(session, signature).run
        first_inputs(self.run, signature)
        trim()
        self.private_bytes = max(0, anonymous_bytes() - before)
        self.ratios: dict[int, float] = {}
        self.run_s: dict[int, float] = {}
        self.difference = 0.0

    def to_json(self) -> JsonObject:
        """Return ``load_s``, ``private_bytes``, and by rows the time and its ratio to private.

        ``difference``: the largest of an answer to that of ``private``, by the largest value.
        """
        return {
            "load_s": self.load_s,
            "private_bytes": self.private_bytes,
            "difference": self.difference,
            "run_s": {str(rows): seconds for rows, seconds in self.run_s.items()},
            "ratios": {str(rows): ratio for rows, ratio in self.ratios.items()},
        }


def _measure(
    forms: Sequence[_Form], signature: Signature, sizes: Sequence[int], threads: int
) -> None:
    style, _ = first_inputs(forms[0].run, signature)
    begin = time.perf_counter()
    for rows in sizes:
        forms = [f for f in forms if max(f.ratios.values(), default=0.0) <= _HOPELESS_RATIO]
        inputs = make_inputs(signature, style, rows)
        start = time.perf_counter()
        try:
            expected = forms[0].run(inputs, None)
        except (InputRefused, RunFailed):
            continue  # it takes other numbers of rows only
        for form in forms[1:]:
            answers = form.run(inputs, None)
            form.difference = max(form.difference, _difference(expected, answers))
        now = time.perf_counter()
        if rows > 1 and (now - start > _LONG_S or now - begin > _ALL_S):
            break
        for _ in range(_TRIES):
            _time(forms, inputs, rows, threads)
            undecided = (_GOOD_RATIO < form.ratios[rows] <= _HOPELESS_RATIO for form in forms)
            if not any(undecided):
                break


def _time(forms: Sequence[_Form], inputs: Mapping[str, Array], rows: int, threads: int) -> None:
    """Time all forms in turns, so that what else the machine does hits each alike.

    With one thread by the processor time, which does not count while others have the core.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: list[list[float]] = [[] for _ in forms]
    begin = time.perf_counter()
    while len(times[0]) < _ROUNDS and time.perf_counter() - begin < _ROUNDS_S * len(forms):
        for form, taken in zip(forms, times, strict=True):
            start = clock()
            form.run(inputs, None)
            taken.append(clock() - start)
    base = times[0]
    for form, taken in zip(forms, times, strict=True):
        # In each turn the two ran next to each other; the smallest of all are the least disturbed.
        ratio = statistics.median(mine / other for mine, other in zip(taken, base, strict=True))
        ratio = min(ratio, min(taken) / min(base))
        form.ratios[rows] = min(form.ratios.get(rows, ratio), ratio)
        form.run_s[rows] = min(form.run_s.get(rows, taken[0]), statistics.median(taken))


def _difference(expected: Sequence[Array], answers: Sequence[Array]) -> float:
    worst = 0.0
    for left, right in zip(expected, answers, strict=True):
        if left.shape != right.shape:
            return float("inf")
        is_float = left.dtype.kind == "f"
        if np.array_equal(left, right, equal_nan=is_float):
            continue
        finite = np.isfinite(left) & np.isfinite(right) if is_float else None
        if finite is None or not np.array_equal(left[~finite], right[~finite], equal_nan=True):
            return float("inf")
        wanted, seen = left[finite].astype(np.float64), right[finite].astype(np.float64)
        scale = float(np.abs(wanted).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(wanted - seen).max(initial=0.0)) / scale)
    return worst
