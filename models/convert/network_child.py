"""What a process of its own does: ``python -m models.convert.network_child FOLDER``.

FOLDER holds ``request.json``; the graph, the cases and ``answer.json`` are written into it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import onnx

from models import confinement
from models.convert.network_rows import make_cases, write_cases
from models.convert.networks import CASES_FILE, GRAPH_FILE, Order, library_of
from models.convert.onnx_file import read_onnx
from models.convert.sample import Sample, read_sample
from models.errors import ConversionRefused
from models.graph_signature import graph_signature
from models.parity import Answer, Inputs
from registry.manifest import JsonObject


@dataclass(frozen=True, slots=True)
class Opened:
    """A network that its library opened and exported.

    ``native``: the library's own answers; raises ConversionRefused for inputs that it refuses.
    ``example``: inputs that it accepts, where the file has some.
    """

    native: Answer
    example: Inputs | None
    framework: str
    libraries: JsonObject


class Exporter(Protocol):
    """What the module of a library gives: it opens a file and writes its graph."""

    def export(self, order: Order, sample: Sample | None, graph: Path) -> Opened:
        """Write ``graph``, with large weights beside it. Raises ConversionRefused."""
        ...


def convert_here(order: Order) -> JsonObject:
    """Convert in this process and return the answer for the parent."""
    module: Any = importlib.import_module(f"models.convert.{library_of(order.found)}")
    exporter: Exporter = module
    try:
        sample = read_sample(order.sample) if order.sample is not None else None
        graph = order.folder / GRAPH_FILE
        opened = exporter.export(order, sample, graph)
        _tidy(graph)
        signature = graph_signature(read_onnx(graph), ConversionRefused)
        for spec in signature.inputs:
            if spec.datatype == "BYTES":
                raise ConversionRefused(
                    f"input {spec.name!r} takes texts: no operator of the runtime cuts them as "
                    "the library does; put the text layers before the model"
                )
        cases = make_cases(signature, opened.native, sample, opened.example)
        write_cases(order.folder / CASES_FILE, cases)
    except ConversionRefused as error:
        return {"refused": str(error)}
    return {"framework": opened.framework, "libraries": opened.libraries}


def _tidy(path: Path) -> None:
    """Drop what exporters note for debugging: paths and code of the machine that trained."""
    model = onnx.load(path, load_external_data=False)
    model.doc_string = ""
    del model.metadata_props[:]
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    for function in model.functions:
        function.doc_string = ""
        del function.metadata_props[:]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            graph.doc_string = ""
            del graph.metadata_props[:]
            for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
                value.doc_string = ""
                del value.metadata_props[:]
            nodes.extend(graph.node)
            continue
        node = nodes.pop()
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)
    path.write_bytes(model.SerializeToString(deterministic=True))


def main() -> int:
    """Convert what the request names and write the answer."""
    confinement.die_with(os.getppid())
    folder = Path(sys.argv[1])
    request: Mapping[str, Any] = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    order = Order(
        path=Path(request["path"]),
        found=request["found"],
        sample=Path(request["sample"]) if request["sample"] is not None else None,
        folder=folder,
        is_code_trusted=request["is_code_trusted"],
    )
    (folder / "answer.json").write_text(json.dumps(convert_here(order)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
