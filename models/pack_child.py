"""Packing in the throwaway child: what kernels copy weights into is written down for all.

The runtime writes an optimised graph and one file with every tensor and, behind it, the blobs that
kernels make of it. Each tensor then becomes an object of its own, so that versions which share the
tensor share the object: its blobs first, which serving reads, then the tensor as it was, which the
runtime reads once more at each load to see that the blobs are right.

It takes two sessions. The first one only optimises, which copies no weights and so takes no time.
In its graph tensors that were packed for another version are recognised and become inputs, so that
the second session packs and writes the others alone.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx
import onnx.helper

from models.computed import objects_beside
from models.errors import LoadFailed
from models.graph_shape import large_tensors, uses_of
from models.graph_walk import is_external, scopes, tensor_bytes, tensors
from models.package import OBJECT_THRESHOLD_BYTES
from models.packed_object import PackedObject, Part, digest_of, page_after
from models.reading import read_file
from models.runtime import onnx as runtime
from models.runtime.ort_session import SessionConfig
from registry.ident import digest_hex
from registry.manifest import JsonObject, Manifest
from registry.packed import PackedTensor

_BLOB_KEY: Final = "prepacked_"


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor becomes an object: its blobs, then itself."""

    parts: tuple[Part, ...]
    keys: Mapping[str, str]  # external data of the tensor, without location
    served_bytes: int


@dataclass(frozen=True, slots=True)
class _LookedUp:
    """The tensors of a graph by name: digest and use, and in ``there`` what need not be packed.

    Of these, ``tables`` stand for themselves, and ``again`` were packed before.
    """

    digests: Mapping[str, str]
    uses: Mapping[str, str]
    there: Mapping[str, PackedTensor]
    tables: tuple[PackedTensor, ...]
    again: tuple[PackedTensor, ...]

    def made(self, name: str, digest: str, layout: _Layout) -> PackedTensor:
        use, source = self.uses[name], self.digests[name]
        return PackedTensor(use, source, digest, layout.keys, layout.served_bytes)


def pack(
    manifest: Manifest,
    objects_dir: Path,
    *,
    threads: int,
    graph_path: Path,
    data_path: Path,
    known: Sequence[PackedTensor] = (),
) -> JsonObject:
    """Write the packed graph and its data; say which parts of the data make which object.

    ``known``: what was packed before, to be used again. In the answer, ``objects`` are those that
    are new, ``resident`` says of all objects that the graph names which bytes serving reads, and
    ``tensors`` which object stands in for which tensor; those in ``reused`` were known.

    ``graph_path`` and ``data_path`` lie in one folder. Raises LoadFailed.
    """
    model = _optimised(objects_dir / digest_hex(manifest.graph), threads, graph_path)
    looked_up = _look_up(model, manifest, objects_dir, known)
    shared = _uses(model)
    left_out = _leave_out(model, looked_up.there.keys())
    _write(model, objects_dir, threads, graph_path, data_path)
    model = onnx.ModelProto()
    model.ParseFromString(read_file(graph_path))
    _put_back(model, left_out, looked_up.there)
    published = {entry.digest for entry in manifest.tensors}
    objects: dict[str, PackedObject] = {}
    resident: Counter[str] = Counter()
    made = list(looked_up.tables)
    for item in looked_up.there.values():
        resident[item.object] = max(resident[item.object], item.served_bytes)
    with data_path.open("rb") as file:
        for found in tensors(model, LoadFailed):
            if _location(found.tensor) != data_path.name:
                continue
            name = found.tensor.name
            size = tensor_bytes(found.tensor, found.where, LoadFailed)
            layout = _layout(found.tensor, size, is_shared=shared[name] > 1)
            digest = digest_of(file.fileno(), layout.parts)
            _point_to(found.tensor, digest, layout.keys)
            resident[digest] = max(resident[digest], layout.served_bytes)
            if digest not in published:
                objects[digest] = PackedObject(digest, layout.parts)
            if found.is_initializer and name in looked_up.uses:
                made.append(looked_up.made(name, digest, layout))
    # In one order, whatever was left out meanwhile: equal versions get equal graphs.
    model.graph.initializer.sort(key=lambda tensor: tensor.name)
    graph_path.write_bytes(model.SerializeToString(deterministic=True))
    # What no graph names is read as it is.
    beside = objects_beside(manifest)
    for entry in manifest.tensors:
        if entry.digest in beside:
            resident[entry.digest] = entry.size_bytes
    return {
        "objects": [item.to_json() for item in objects.values()],
        "resident": {**resident},
        "tensors": [item.to_json() for item in made],
        "reused": [*sorted({item.use for item in looked_up.again})],
    }


def compact(manifest: Manifest, objects_dir: Path, *, threads: int, graph_path: Path) -> JsonObject:
    """Write the graph in the runtime's own format; answers as ``pack`` does.

    For weights that stand in attributes, as trees do: of this format the runtime keeps only what
    its kernels made of them, of the other the attributes as well. Raises LoadFailed.
    """
    graph_path.touch(mode=0o600)
    entries = {"session.save_model_format": "ORT"}
    runtime.create_session(
        objects_dir / digest_hex(manifest.graph),
        SessionConfig(threads, written_to=graph_path, entries=entries),
    ).close()
    return {"objects": [], "resident": {}, "tensors": [], "reused": []}


def _look_up(
    model: onnx.ModelProto, manifest: Manifest, objects_dir: Path, known: Sequence[PackedTensor]
) -> _LookedUp:
    """Find out which tensors of an optimised graph need not be packed."""
    digests = {
        tensor.name: _digest(tensor, objects_dir)
        for tensor in large_tensors(model)
        if not _is_input(model, tensor.name)
    }
    uses = uses_of(model, digests)
    by_use = {item.use: item for item in known}
    tables = _tables(model, manifest, digests, uses)
    again = {name: by_use[use] for name, use in uses.items() if use in by_use}
    there = {**tables, **again}
    for name in _beside_others(model, digests.keys() - there.keys()):
        there.pop(name, None)
    return _LookedUp(
        digests, uses, there,
        tuple(item for name, item in tables.items() if name in there and name not in again),
        tuple(item for name, item in again.items() if name in there),
    )  # fmt: skip


def _optimised(graph: Path, threads: int, path: Path) -> onnx.ModelProto:
    """Return the graph as the runtime optimises it, its tensors where they were."""
    entries = {"session.disable_prepacking": "1"}
    # Made before the runtime does, for nobody else to read.
    path.touch(mode=0o600)
    config = SessionConfig(threads, written_to=path, entries=entries)
    runtime.create_session(graph, config).close()
    model = onnx.ModelProto()
    model.ParseFromString(read_file(path))
    return model


def _write(
    model: onnx.ModelProto, objects_dir: Path, threads: int, graph_path: Path, data_path: Path
) -> None:
    """Have the runtime pack what the graph holds, and write both down."""
    entries = {
        "session.model_external_initializers_file_folder_path": str(objects_dir),
        "session.optimized_model_external_initializers_file_name": data_path.name,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(
            OBJECT_THRESHOLD_BYTES
        ),
        "session.save_external_prepacked_constant_initializers": "1",
    }
    config = SessionConfig(threads, is_optimised=False, written_to=graph_path, entries=entries)
    data_path.touch(mode=0o600)
    runtime.create_session(model.SerializeToString(), config).close()
    data_path.touch(mode=0o600)  # it is not there where nothing had to be written


def _digest(tensor: onnx.TensorProto, objects_dir: Path) -> str:
    """Return the digest of a tensor's own bytes."""
    if not is_external(tensor):
        return "sha256:" + hashlib.sha256(tensor.raw_data).hexdigest()
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = str(fields["location"])
    path, offset = objects_dir / location, int(fields.get("offset", "0"))
    whole = path.stat().st_size
    length = int(fields.get("length", whole - offset))
    if (offset, length) == (0, whole):
        return "sha256:" + location
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return digest_of(descriptor, (Part(0, offset, length),))
    finally:
        os.close(descriptor)


def _tables(
    model: onnx.ModelProto, manifest: Manifest, digests: Mapping[str, str], uses: Mapping[str, str]
) -> dict[str, PackedTensor]:
    """Return the tensors that rows are only gathered from, each as the object that it is.

    No kernel packs them, and they may be most of the bytes: why have the runtime write them again.
    """
    sizes = {entry.digest: entry.size_bytes for entry in manifest.tensors}
    others = {value.name for value in model.graph.output} | {
        name
        for scope in scopes(model, LoadFailed)
        for node in scope.nodes
        for index, name in enumerate(node.input)
        if (node.domain, node.op_type, index) != ("", "Gather", 0)
    }
    return {
        name: PackedTensor(
            uses[name], digest, digest, {"offset": "0", "length": str(sizes[digest])}, sizes[digest]
        )
        for name, digest in digests.items()
        if digest in sizes and name not in others
    }


def _location(tensor: onnx.TensorProto) -> str:
    return next((str(item.value) for item in tensor.external_data if item.key == "location"), "")


def _is_input(model: onnx.ModelProto, name: str) -> bool:
    """Tell whether callers may give another value for a tensor; then it is no constant."""
    return any(value.name == name for value in model.graph.input)


def _beside_others(model: onnx.ModelProto, names: Collection[str]) -> set[str]:
    """Return all that a node reads which reads one of ``names``: it may look at all of them."""
    return {
        name
        for scope in scopes(model, LoadFailed)
        for node in scope.nodes
        if any(each in names for each in node.input)
        for name in node.input
    }


def _leave_out(model: onnx.ModelProto, names: Collection[str]) -> dict[str, onnx.TensorProto]:
    """Make inputs of some initializers, for which no kernel packs anything; return them."""
    kept, gone = [], {}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            gone[tensor.name] = tensor
        else:
            kept.append(tensor)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
        for name, tensor in gone.items()
    )
    keep = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    gone = {n: onnx.TensorProto.FromString(t.SerializeToString()) for n, t in gone.items()}
    del model.graph.initializer[:]
    model.graph.initializer.extend(keep)
    return gone


def _put_back(
    model: onnx.ModelProto,
    left_out: Mapping[str, onnx.TensorProto],
    known: Mapping[str, PackedTensor],
) -> None:
    """Undo ``_leave_out``, with each tensor in the object that was packed of it before."""
    inputs = [value for value in model.graph.input if value.name not in left_out]
    inputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in inputs]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    for name, tensor in left_out.items():
        _point_to(tensor, known[name].object, known[name].names)
        model.graph.initializer.append(tensor)


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
    """Say where a tensor lies, and nothing else: the same however it came into the graph."""
    name, dims, data_type = tensor.name, list(tensor.dims), tensor.data_type
    tensor.Clear()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": digest_hex(digest), **dict(sorted(keys.items()))}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
