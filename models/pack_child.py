"""Packing in the throwaway child: what kernels copy weights into is written down for all.

The runtime writes an optimised graph and one file with every tensor and, behind it, the blobs that
kernels make of it. Each tensor then becomes an object of its own, so that versions which share the
tensor share the object: its blobs first, which serving reads, then the tensor as it was, which the
runtime reads once more at each load to see that the blobs are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx

from models.errors import LoadFailed
from models.graph_walk import is_external, scopes, tensor_bytes, tensors
from models.package import OBJECT_THRESHOLD_BYTES
from models.packed_object import PackedObject, Part, digest_of, page_after
from models.runtime import onnx as runtime
from models.text_form import RUNTIME_NAME, parse_text_form
from registry.ident import digest_hex
from registry.manifest import Json, JsonObject, Manifest

_BLOB_KEY: Final = "prepacked_"


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
    if manifest.runtime.get("name") == RUNTIME_NAME:
        # No graph names the tokenizer: it is read as it is.
        tokenizer = parse_text_form(manifest).tokenizer
        sizes = {entry.digest: entry.size_bytes for entry in manifest.tensors}
        resident[tokenizer] = sizes[tokenizer]
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
