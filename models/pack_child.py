"""Packing in the throwaway child: what kernels copy weights into is written down, then tried.

The runtime writes an optimised graph and one file with every tensor and, behind it, the blobs that
kernels make of it. Each tensor then becomes an object of its own, so that versions which share the
tensor share the object: its blobs first, which serving reads, then the tensor as it was, which the
runtime reads once more at each load to see that the blobs are right.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from models.errors import InputRefused, LoadFailed, RunFailed
from models.graph_walk import is_external, scopes, tensor_bytes, tensors
from models.memory import anonymous_bytes, trim
from models.package import OBJECT_THRESHOLD_BYTES
from models.packed_object import PackedObject, Part, digest_of, page_after
from models.runtime import onnx as runtime
from models.servable import Array
from models.signature import Signature, parse_signature
from models.synthetic import Run, first_inputs, make_inputs
from registry.ident import digest_hex
from registry.manifest import Json, JsonObject, Manifest

_BLOB_KEY: Final = "prepacked_"
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


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor becomes an object: its blobs, then itself."""

    parts: tuple[Part, ...]
    keys: Mapping[str, str]  # external data of the tensor, without location
    served_bytes: int


def pack(
    manifest: Manifest, objects_dir: Path, *, threads: int, graph_path: Path, data_path: Path
) -> JsonObject:
    """Write the packed graph and its data; say which parts of the data make which object.

    ``objects``: those that the version does not have already. ``resident``: digest to the bytes
    that serving reads, of all objects that the graph names.

    ``graph_path`` and ``data_path`` lie in one folder. Raises LoadFailed.
    """
    _write(objects_dir / digest_hex(manifest.graph), threads, graph_path, data_path)
    model = onnx.ModelProto()
    model.ParseFromString(graph_path.read_bytes())
    uses = _uses(model)
    known = {entry.digest for entry in manifest.tensors}
    objects: dict[str, PackedObject] = {}
    resident: dict[str, int] = {}
    with data_path.open("rb") as file:
        for found in tensors(model, LoadFailed):
            if not is_external(found.tensor):
                continue
            size = tensor_bytes(found.tensor, found.where, LoadFailed)
            layout = _layout(found.tensor, size, is_shared=uses[found.tensor.name] > 1)
            digest = digest_of(file.fileno(), layout.parts)
            _point_to(found.tensor, digest, layout.keys)
            resident[digest] = max(resident.get(digest, 0), layout.served_bytes)
            if digest not in known:
                objects[digest] = PackedObject(digest, layout.parts)
    graph_path.write_bytes(model.SerializeToString(deterministic=True))
    described: list[Json] = [item.to_json() for item in objects.values()]
    return {"objects": described, "resident": {**resident}}


def compact(
    manifest: Manifest, objects_dir: Path, *, threads: int, graph_path: Path, data_path: Path
) -> JsonObject:
    """Write the graph in the runtime's own format; answers as ``pack`` does.

    For weights that stand in attributes, as trees do: of this format the runtime keeps only what
    its kernels made of them, of the other the attributes as well. Raises LoadFailed.
    """
    options = runtime.session_options(threads)
    options.optimized_model_filepath = str(graph_path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    for path in (graph_path, data_path):
        path.touch(mode=0o600)
    runtime.create_session(objects_dir / digest_hex(manifest.graph), options)
    return {"objects": [], "resident": {}}


def compare(
    manifest: Manifest, objects_dir: Path, *, threads: int, packed_graph: str
) -> JsonObject:
    """Open a version in each form and say what each takes: by name, see ``_Form.to_json``.

    Forms are ``private`` (the plain one), ``mapped`` (without packing at load) and ``packed``,
    where ``packed_graph`` is the digest of a graph that ``pack`` or ``compact`` made.
    """
    signature = parse_signature(manifest.signature)
    plain = objects_dir / digest_hex(manifest.graph)
    runtime.prime(threads)
    forms = [_Form("private", plain, signature, threads)]
    if manifest.tensors:
        forms.append(_Form("mapped", plain, signature, threads, has_prepacking=False))
    if packed_graph:
        packed = objects_dir / digest_hex(packed_graph)
        forms.append(_Form("packed", packed, signature, threads, is_packed=True))
    follows_rows = any(spec.shape and spec.shape[0] == -1 for spec in signature.inputs)
    _measure(forms, signature, _ROWS if follows_rows else _ROWS[:1])
    return {form.name: form.to_json() for form in forms}


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


def _measure(forms: Sequence[_Form], signature: Signature, sizes: Sequence[int]) -> None:
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
            _time(forms, inputs, rows)
            undecided = (_GOOD_RATIO < form.ratios[rows] <= _HOPELESS_RATIO for form in forms)
            if not any(undecided):
                break


def _time(forms: Sequence[_Form], inputs: Mapping[str, Array], rows: int) -> None:
    """Time all forms in turns, so that what else the machine does hits each alike."""
    times: list[list[float]] = [[] for _ in forms]
    begin = time.perf_counter()
    while len(times[0]) < _ROUNDS and time.perf_counter() - begin < _ROUNDS_S * len(forms):
        for form, taken in zip(forms, times, strict=True):
            start = time.perf_counter()
            form.run(inputs, None)
            taken.append(time.perf_counter() - start)
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


def _write(graph: Path, threads: int, graph_path: Path, data_path: Path) -> None:
    options = runtime.session_options(threads)
    options.optimized_model_filepath = str(graph_path)
    for key, value in {
        "session.optimized_model_external_initializers_file_name": data_path.name,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(
            OBJECT_THRESHOLD_BYTES
        ),
        "session.save_external_prepacked_constant_initializers": "1",
    }.items():
        options.add_session_config_entry(key, value)
    # Made before the runtime does, for nobody else to read.
    for path in (graph_path, data_path):
        path.touch(mode=0o600)
    runtime.create_session(graph, options)


def _uses(model: onnx.ModelProto) -> Counter[str]:
    uses = Counter(value.name for value in model.graph.output)
    for scope in scopes(model, LoadFailed):
        uses.update(name for node in scope.nodes for name in node.input)
    return uses


def _layout(tensor: onnx.TensorProto, size_bytes: int, *, is_shared: bool) -> _Layout:
    """Lay a tensor of the runtime's file out as an object of its own.

    ``is_shared``: several nodes read it, and one of them may read it as it is.
    """
    fields = {entry.key: entry.value for entry in tensor.external_data}
    end = 0
    parts: list[Part] = []
    keys: dict[str, str] = {}
    for key in sorted(key for key in fields if key.startswith(_BLOB_KEY)):
        kernel, *blobs = fields[key].split("|")
        moved = []
        for blob in blobs:
            offset, length, flag = blob.split(";")
            start = page_after(end)
            parts.append(Part(start, int(offset), int(length)))
            end = start + int(length)
            moved.append(f"{start};{length};{flag}")
        keys[key] = "|".join([kernel, *moved])
    start = page_after(end)
    parts.append(Part(start, int(fields.get("offset", "0")), size_bytes))
    if int(fields.get("length", size_bytes)) != size_bytes:
        raise LoadFailed(f"the runtime wrote another size of {tensor.name!r} than its shape has")
    keys |= {"offset": str(start), "length": str(size_bytes)}
    return _Layout(
        tuple(parts), keys, served_bytes=end if end and not is_shared else start + size_bytes
    )


def _point_to(tensor: onnx.TensorProto, digest: str, keys: Mapping[str, str]) -> None:
    del tensor.external_data[:]
    for key, value in {"location": digest_hex(digest), **keys}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
