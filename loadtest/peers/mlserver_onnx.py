"""MLServer with a model class of its own over ONNX Runtime, in one process."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    """Runs the graph that its settings name."""

    async def load(self) -> bool:
        """Open the graph."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(self.settings.parameters.uri, options)
        self._names = [output.name for output in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        feed = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        results = self._session.run(None, feed)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                NumpyCodec.encode_output(name, np.asarray(value))
                for name, value in zip(self._names, results, strict=True)
            ],
        )


def main() -> None:
    """Write MLServer's settings and become it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True, metavar="NAME=FILE")
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    name, path = options.model.split("=", 1)
    (options.work / "settings.json").write_text(json.dumps({
        "host": "127.0.0.1", "http_port": options.port, "grpc_port": _free_port(),
        "metrics_endpoint": None, "metrics_port": _free_port(),
        "parallel_workers": 0, "debug": False,
    }))  # fmt: skip
    (options.work / "model-settings.json").write_text(json.dumps({
        "name": name, "implementation": "mlserver_onnx.OnnxModel", "parameters": {"uri": path},
    }))  # fmt: skip
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    mlserver = str(Path(sys.executable).with_name("mlserver"))
    os.execv(mlserver, [mlserver, "start", str(options.work)])  # noqa: S606


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
