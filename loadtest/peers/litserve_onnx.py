"""LitServe with one worker over ONNX Runtime.

LitServe looks at the types of its methods, so annotations are not postponed here.
"""

import argparse
from typing import Any

import litserve
import numpy as np
import onnxruntime

NUMPY = {
    "FP32": np.float32,
    "INT64": np.int64,
}
DATATYPES = {np.dtype(kind): name for name, kind in NUMPY.items()}


class OnnxApi(litserve.LitAPI):
    """Runs one graph."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(api_path=f"/v2/models/{name}/infer")
        self._path = path

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe gives it
        """Open the graph in the worker."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(self._path, options)
        self._names = [output.name for output in self._session.get_outputs()]

    def decode_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs as arrays."""
        return {
            each["name"]: np.array(each["data"], NUMPY[each["datatype"]]).reshape(each["shape"])
            for each in request["inputs"]
        }

    def predict(self, inputs: dict[str, Any]) -> list[Any]:
        """Run."""
        results: list[Any] = self._session.run(None, inputs)
        return results

    def encode_response(self, output: list[Any]) -> dict[str, Any]:
        """Return the answer as JSON."""
        return {
            "outputs": [
                {"name": name, "shape": list(value.shape), "datatype": DATATYPES[value.dtype],
                 "data": value.ravel().tolist()}
                for name, value in zip(self._names, output, strict=True)
            ]
        }  # fmt: skip


def main() -> None:
    """Serve as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True, metavar="NAME=FILE")
    parser.add_argument("--work", required=True)
    options = parser.parse_args()
    name, path = options.model.split("=", 1)
    server = litserve.LitServer(OnnxApi(name, path), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=options.port, num_api_servers=1, generate_client_file=False,
               log_level="warning")  # fmt: skip


if __name__ == "__main__":
    main()
