"""Ray Serve with one replica over ONNX Runtime, as a Ray of one machine."""

from __future__ import annotations

import argparse
import signal
from typing import Any

import numpy as np
import onnxruntime
import ray
from ray import serve

NUMPY = {
    "FP32": np.float32,
    "INT64": np.int64,
}


class OnnxDeployment:
    """Runs one graph."""

    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options)
        self._names = [output.name for output in self._session.get_outputs()]

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Answer one request."""
        feed = {
            each["name"]: np.array(each["data"], NUMPY[each["datatype"]]).reshape(each["shape"])
            for each in (await request.json())["inputs"]
        }
        results = self._session.run(None, feed)
        return {
            "outputs": [
                {"name": name, "shape": list(value.shape), "data": value.ravel().tolist()}
                for name, value in zip(self._names, results, strict=True)
            ]
        }


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True, metavar="NAME=FILE")
    parser.add_argument("--work", required=True)
    options = parser.parse_args()
    name, path = options.model.split("=", 1)
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20,
             log_to_driver=False)  # fmt: skip
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": options.port})
        deployment = serve.deployment(
            OnnxDeployment, num_replicas=1, max_ongoing_requests=256,
            ray_actor_options={"num_cpus": 1},
        )  # fmt: skip
        serve.run(deployment.bind(path), route_prefix=f"/v2/models/{name}/infer")
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
