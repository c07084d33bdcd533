"""``python -m models.zoo.bench OUT_DIR``: makes the models of the benches and an index of them.

The index says for each model what to push, and which plain ONNX file another server can open: the
same graph, so that servers are compared and not conversions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from models.convert import ConvertOptions, convert
from models.package import ObjectSource
from models.zoo.encoder import write_encoder
from models.zoo.heavy import MATRIX_MIB, write_dense, write_forest
from models.zoo.recommender import write_recommender
from models.zoo.tables import build_fraud
from registry.manifest import Json, JsonObject

INDEX_FILE: Final = "bench.json"
_MIN_NODES: Final = 2**14


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what was asked for, all if nothing was; return the exit code."""
    makers: dict[str, Callable[[Path, argparse.Namespace], JsonObject]] = {
        "fraud": lambda folder, _: _fraud(folder),
        "recommender": _recommender,
        "encoder": lambda folder, _: _one(write_encoder(folder / "encoder.onnx")),
        "dense": lambda folder, options: _one(write_dense(folder, options.dense_mib)),
        "forest": lambda folder, options: _one(write_forest(folder, options.forest_nodes)),
    }
    parser = argparse.ArgumentParser(prog="python -m models.zoo.bench", description=__doc__)
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="folder for the files")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=list(makers),
        help=f"make only this model (may be repeated): {', '.join(makers)}",
    )  # fmt: skip
    parser.add_argument(
        "--recommender-mib", type=_at_least(1), default=2048, help="size of its table"
    )
    parser.add_argument(
        "--dense-mib", type=_at_least(MATRIX_MIB), default=512, help="size of its weights"
    )
    parser.add_argument(
        "--forest-nodes", type=_at_least(_MIN_NODES), default=3_000_000, help="nodes of its trees"
    )
    options = parser.parse_args(arguments)
    index: JsonObject = {}
    for name in dict.fromkeys(options.only or makers):
        folder = options.out_dir.resolve() / name
        folder.mkdir(parents=True, exist_ok=True)
        index[name] = makers[name](folder, options)
    (options.out_dir / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return 0


def _fraud(folder: Path) -> JsonObject:
    """Train both versions and write the graph of each as it is pushed."""
    artefact = build_fraud(folder)
    paths = [path for path in (artefact.path, artefact.next_path) if path is not None]
    plain: list[Json] = []
    for path in paths:
        package = convert("fraud", path, ConvertOptions(sample=artefact.sample))
        graphs = [each for each in package.objects if each.digest == package.manifest.graph]
        plain.append(_written(path.with_suffix(".onnx"), graphs[0]))
    return {
        "push": [str(path) for path in paths],
        "onnx": plain,
        "sample": str(artefact.sample),
    }


def _written(path: Path, graph: ObjectSource) -> str:
    with path.open("wb") as file:
        for chunk in graph.chunks():
            file.write(chunk)
    return str(path)


def _recommender(folder: Path, options: argparse.Namespace) -> JsonObject:
    paths: list[Json] = [
        str(write_recommender(folder, mib=options.recommender_mib, variant=variant))
        for variant in (1, 2)
    ]
    return {"push": paths, "onnx": paths}


def _one(path: Path) -> JsonObject:
    return {"push": [str(path)], "onnx": [str(path)]}


def _at_least(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: use a number from {least}")
        return int(text)

    return whole


if __name__ == "__main__":
    sys.exit(main())
