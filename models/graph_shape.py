"""Of which shape a graph is, and how its nodes use a tensor: hashes that tell what may be shared.

Versions of one model mostly have one graph with other weights. What was measured of one of them
holds for the others, and what kernels made of a tensor holds wherever the same kernels meet the
same tensor.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import onnx

from models.errors import LoadFailed
from models.graph_walk import is_external, scopes
from models.package import OBJECT_THRESHOLD_BYTES

# Numbers that steer the computation, such as shapes and axes, are part of what a graph is.
_STEERING: Final = frozenset(
    (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
)


def shape_of(model: onnx.ModelProto) -> str:
    """Return a hash of all but the values of the weights.

    Graphs with equal hashes run the same kernels on tensors of the same sizes.
    """
    graph = model.graph
    parts: list[bytes] = [*_opsets(model), *map(_bytes, model.functions)]
    for items in (graph.node, graph.input, graph.output):
        parts += [b"", *map(_bytes, items)]
    for tensor in sorted(graph.initializer, key=lambda item: item.name):
        is_steering = tensor.data_type in _STEERING and not is_external(tensor)
        what = f"{tensor.name} {tensor.data_type} {list(tensor.dims)}".encode()
        parts += [what, _bytes(tensor) if is_steering else b""]
    return _hash(parts)


def uses_of(model: onnx.ModelProto, digests: Mapping[str, str]) -> dict[str, str]:
    """Return a hash for each of the graph's own tensors of ``digests``, name to that of its bytes.

    Equal hashes mean equal bytes for equal kernels, which make the same of them: operator,
    attributes, and whatever else stands fixed among the inputs, as scales and zero points do.
    """
    known = _Constants(model, digests)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for scope in scopes(model, LoadFailed):
        for node in scope.nodes:
            wanted = [index for index, name in enumerate(node.input) if name in digests]
            if wanted:
                kernel = _hash([_operator(node), *map(known.describe, node.input)])
                for index in wanted:
                    found[node.input[index]].append(f"{index} {kernel}")
    for value in model.graph.output:
        found[value.name].append("output")
    opsets = _opsets(model)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    return {
        name: _hash([
            digest.encode(),
            f"{tensors[name].data_type} {list(tensors[name].dims)}".encode(),
            *opsets,
            *(use.encode() for use in sorted(found[name])),
        ])
        for name, digest in digests.items()
    }  # fmt: skip


def large_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the graph's own initializers that are objects, or are large enough to become some."""
    for tensor in model.graph.initializer:
        if is_external(tensor) or len(tensor.raw_data) >= OBJECT_THRESHOLD_BYTES:
            yield tensor


class _Constants:
    """What stands fixed in a graph, as far as its kernels know it beforehand."""

    def __init__(self, model: onnx.ModelProto, digests: Mapping[str, str]) -> None:
        self._digests = digests
        self._small = {t.name: t for t in model.graph.initializer if t.name not in digests}

    def describe(self, name: str) -> bytes:
        """Return what is known of an input: that there is none, its bytes, or that it varies."""
        if not name:
            return b"none"
        if digest := self._digests.get(name):
            return digest.encode()
        tensor = self._small.get(name)
        if tensor is None:
            return b"varies"
        unnamed = onnx.TensorProto()
        unnamed.CopyFrom(tensor)
        unnamed.ClearField("name")
        return _hash([_bytes(unnamed)]).encode()


def _operator(node: onnx.NodeProto) -> bytes:
    plain = onnx.NodeProto(domain=node.domain, op_type=node.op_type)
    plain.attribute.extend(sorted(node.attribute, key=lambda item: item.name))
    plain.output.extend("" if not name else "y" for name in node.output)
    return _bytes(plain)


def _opsets(model: onnx.ModelProto) -> list[bytes]:
    return sorted(f"{item.domain} {item.version}".encode() for item in model.opset_import)


def _bytes(message: onnx.NodeProto | onnx.TensorProto | onnx.ValueInfoProto) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _hash(parts: Iterable[bytes]) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()
