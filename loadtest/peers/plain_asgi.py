"""A bare ASGI function with orjson over ONNX Runtime: no framework, no checks, no batching."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import onnxruntime
import orjson
import uvicorn

NUMPY = {
    "FP32": np.float32,
    "INT64": np.int64,
}
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class App:
    """Answers ``POST /v2/models/NAME/infer``."""

    def __init__(self, models: dict[str, str]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._sessions = {}
        for name, path in models.items():
            session = onnxruntime.InferenceSession(path, options)
            names = [output.name for output in session.get_outputs()]
            self._sessions[f"/v2/models/{name}/infer"] = (name, session, names)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, answer = self._answer(scope["path"], body)
        await send({
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(answer)),
            ],
        })  # fmt: skip
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            name, session, output_names = self._sessions[path]
            feed = {
                tensor["name"]: np.array(tensor["data"], NUMPY[tensor["datatype"]]).reshape(
                    tensor["shape"]
                )
                for tensor in orjson.loads(body)["inputs"]
            }
            results = session.run(None, feed)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is an answer
            return 400, orjson.dumps({"error": str(error)})
        outputs = [
            {
                "name": each,
                "shape": value.shape,
                "datatype": "INT64" if value.dtype == np.int64 else "FP32",
                "data": value.ravel(),
            }
            for each, value in zip(output_names, results, strict=True)
        ]
        return 200, orjson.dumps(
            {"model_name": name, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY
        )


def main() -> None:
    """Serve as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FILE")
    options = parser.parse_args()
    uvicorn.run(
        App(dict(each.split("=", 1) for each in options.model)),
        port=options.port, loop="uvloop", http="httptools",
        log_level="warning", access_log=False, lifespan="off",
    )  # fmt: skip


if __name__ == "__main__":
    main()
