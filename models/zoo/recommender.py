"""A recommender with an embedding table of any size, written to disk piece by piece.

The file is ONNX with the table as external data. Both variants use one and the same table file
and differ in one small tensor, as two trainings of the last layers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.zoo.artefact import Artefact, answers

WIDTH: Final = 64
USERS: Final = 5000
HIDDEN: Final = 256
TABLE_FILE: Final = "items.bin"
MIN_MIB: Final = 1
MAX_MIB: Final = 65_536
_SEED: Final = 7
_CHUNK_ROWS: Final = 32_768  # 8 MiB
_ROWS_PER_MIB: Final = (1 << 20) // (WIDTH * 4)


def build_recommender(
    folder: Path, *, mib: int = 256, progress: Callable[[int, int], None] | None = None
) -> Artefact:
    """Write both variants over a table of ``mib`` MiB; ``progress`` gets bytes done and in all."""
    first = write_recommender(folder, mib=mib, variant=1, progress=progress)
    second = write_recommender(folder, mib=mib, variant=2)
    users = np.array([0, 17, USERS - 1], dtype=np.int64)
    items = np.array([1, 2024, mib * _ROWS_PER_MIB - 1], dtype=np.int64)
    return Artefact(
        "recommender", first, "onnx",
        sample=None,
        next_path=second,
        example_request={"inputs": {"user": users.tolist(), "item": items.tolist()}},
        expected=answers({"score": score(folder, users, items, mib=mib)}),
    )  # fmt: skip


def write_recommender(
    folder: Path, *, mib: int = 256, variant: int = 1,
    progress: Callable[[int, int], None] | None = None, table: int = 0, users: int = USERS,
) -> Path:  # fmt: skip
    """Write one variant (from 1) and, unless it is there, the table; return the model's path.

    ``table``: which one; no two share a row. With more than USERS ``users`` each variant has a user
    table of its own. Memory needed: one piece of the table, 8 MiB, whatever ``mib`` is.
    """
    if not MIN_MIB <= mib <= MAX_MIB:
        raise ValueError(f"recommender: {mib} MiB is not allowed: use {MIN_MIB} to {MAX_MIB}")
    if variant < 1:
        raise ValueError(f"recommender: variant {variant} is not allowed: use a number from 1")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / TABLE_FILE
    if not (file.is_file() and file.stat().st_size == mib << 20):
        _write_table(file, mib, progress, table)
    path = folder / f"recommender-{variant}.onnx"
    path.write_bytes(_model(mib, variant, users).SerializeToString(deterministic=True))
    return path


def score(
    folder: Path, users: NDArray[np.int64], items: NDArray[np.int64], *, mib: int,
    variant: int = 1,
) -> NDArray[np.float64]:  # fmt: skip
    """Return what the model answers, computed by numpy in double from the files."""
    table = np.memmap(
        folder / TABLE_FILE, dtype="<f4", mode="r", shape=(mib * _ROWS_PER_MIB, WIDTH)
    )
    user_table, hidden, bias, out = (w.astype(np.float64) for w in _weights(variant))
    features = np.concatenate([user_table[users], table[items].astype(np.float64)], axis=1)
    logits = np.maximum(features @ hidden + bias, 0.0) @ out
    return np.asarray(1.0 / (1.0 + np.exp(-logits[:, 0])))


def _write_table(
    path: Path, mib: int, progress: Callable[[int, int], None] | None, table: int
) -> None:
    total = mib << 20
    written = 0
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        for chunk in _table_chunks(mib * _ROWS_PER_MIB, table):
            file.write(chunk.data)
            written += chunk.nbytes
            if progress is not None:
                progress(written, total)
    unfinished.replace(path)


def _table_chunks(rows: int, table: int = 0) -> Iterator[NDArray[np.float32]]:
    for index, start in enumerate(range(0, rows, _CHUNK_ROWS)):
        # Each piece has a seed of its own, so that a longer table begins with the shorter one.
        rng = np.random.default_rng([_SEED, index, table] if table else [_SEED, index])
        piece = rng.random((_CHUNK_ROWS, WIDTH), dtype=np.float32)
        piece -= np.float32(0.5)
        yield piece[: min(_CHUNK_ROWS, rows - start)].astype("<f4", copy=False)


def _weights(variant: int, user_rows: int = USERS) -> tuple[NDArray[np.float32], ...]:
    """Return the user table, the hidden layer (the variants differ here), its bias, the last."""
    common = np.random.default_rng([_SEED, 2**31])
    users = common.random((USERS, WIDTH), dtype=np.float32) - np.float32(0.5)
    bias = common.random(HIDDEN, dtype=np.float32) - np.float32(0.5)
    out = common.random((HIDDEN, 1), dtype=np.float32) - np.float32(0.5)
    own = np.random.default_rng([_SEED, 2**31 + variant])
    hidden = own.random((2 * WIDTH, HIDDEN), dtype=np.float32) - np.float32(0.5)
    if user_rows > USERS:
        users = own.random((user_rows, WIDTH), dtype=np.float32) - np.float32(0.5)
    return users, hidden, bias, out


def _model(mib: int, variant: int, user_rows: int) -> onnx.ModelProto:
    users, hidden, bias, out = _weights(variant, user_rows)
    table = TensorProto(
        name="item_table", data_type=TensorProto.FLOAT, dims=[mib * _ROWS_PER_MIB, WIDTH],
        data_location=TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, value in (("location", TABLE_FILE), ("offset", "0"), ("length", str(mib << 20))):
        table.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("Gather", ["user_table", "user"], ["user_vector"], axis=0),
        helper.make_node("Gather", ["item_table", "item"], ["item_vector"], axis=0),
        helper.make_node("Concat", ["user_vector", "item_vector"], ["features"], axis=1),
        helper.make_node("Gemm", ["features", "hidden_weight", "hidden_bias"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "out_weight"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["probability"]),
        helper.make_node("Squeeze", ["probability", "column"], ["score"]),
    ]
    constants = [
        table,
        numpy_helper.from_array(users, "user_table"),
        numpy_helper.from_array(hidden, "hidden_weight"),
        numpy_helper.from_array(bias, "hidden_bias"),
        numpy_helper.from_array(out, "out_weight"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "column"),
    ]
    graph = helper.make_graph(
        nodes,
        "recommender",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["rows"]) for n in ("user", "item")],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows"])],
        constants,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, producer_name="ramrack"
    )
