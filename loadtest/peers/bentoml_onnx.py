"""BentoML with one worker over ONNX Runtime."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import bentoml
import numpy as np
import onnxruntime

NUMPY = {
    "FP32": np.float32,
    "INT64": np.int64,
}
DATATYPES = {np.dtype(kind): name for name, kind in NUMPY.items()}


@bentoml.service(workers=1, traffic={"timeout": 30})
class OnnxService:
    """Runs one graph."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(os.environ["PEER_MODEL"], options)
        self._names = [output.name for output in self._session.get_outputs()]

    @bentoml.api(route="/v2/models/fraud/infer")
    async def infer(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Answer one request."""
        feed = {
            each["name"]: np.array(each["data"], NUMPY[each["datatype"]]).reshape(each["shape"])
            for each in inputs
        }
        results = self._session.run(None, feed)
        return {
            "outputs": [
                {"name": name, "shape": list(value.shape), "datatype": DATATYPES[value.dtype],
                 "data": value.ravel().tolist()}
                for name, value in zip(self._names, results, strict=True)
            ]
        }  # fmt: skip


def main() -> None:
    """Become BentoML's server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", required=True)
    parser.add_argument("--model", required=True, metavar="NAME=FILE")
    parser.add_argument("--work", required=True)
    options = parser.parse_args()
    os.environ |= {
        "PEER_MODEL": options.model.split("=", 1)[1], "BENTOML_HOME": options.work,
        "BENTOML_DO_NOT_TRACK": "True", "PYTHONPATH": str(Path(__file__).parent),
    }  # fmt: skip
    command = str(Path(sys.executable).with_name("bentoml"))
    os.execv(command, [command, "serve", "bentoml_onnx:OnnxService",  # noqa: S606
                       "--host", "127.0.0.1", "--port", options.port])  # fmt: skip


if __name__ == "__main__":
    main()
