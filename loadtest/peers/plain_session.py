"""A plain runtime session in a process of its own: its load, its memory, its speed, its answers."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

_DTYPES = {"FP32": np.float32, "INT64": np.int64}


def main() -> None:
    """Open the graph, run it for a while, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph")
    parser.add_argument("body", type=Path, help="file with a V2 request in JSON")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to run it")
    options = parser.parse_args()
    body = json.loads(options.body.read_bytes())
    inputs = {
        each["name"]: np.array(each["data"], _DTYPES[each["datatype"]]).reshape(each["shape"])
        for each in body["inputs"]
    }
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    before = _anonymous_bytes()
    began = time.perf_counter()
    session = onnxruntime.InferenceSession(
        options.graph, settings, providers=["CPUExecutionProvider"]
    )
    load_s = time.perf_counter() - began
    names = [output.name for output in session.get_outputs()]
    answers = session.run(names, inputs)
    runs: list[float] = []
    end = time.perf_counter() + options.seconds
    while not runs or time.perf_counter() < end:
        began = time.perf_counter()
        session.run(names, inputs)
        runs.append(time.perf_counter() - began)
    json.dump({
        "load_s": load_s,
        "anonymous_bytes": _anonymous_bytes() - before,
        "run_ms": 1000 * sum(runs) / len(runs),
        "outputs": {n: np.asarray(a).ravel().tolist() for n, a in zip(names, answers, strict=True)},
    }, sys.stdout)  # fmt: skip


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
