"""FastAPI with pydantic models over ONNX Runtime, as most people write a model server today.

Written with care: one process, uvloop and httptools, one session with one thread, the route on the
event loop (a thread pool is slower for models this small), request and answer as pydantic models
whose data has one type.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

NUMPY = {
    "FP32": np.float32,
    "INT64": np.int64,
}


class FloatTensor(BaseModel):
    """Numbers of one tensor, row by row."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class IntTensor(BaseModel):
    """Whole numbers of one tensor, row by row."""

    name: str
    shape: list[int]
    datatype: str
    data: list[int]


class FloatRequest(BaseModel):
    """A request to a model of numbers."""

    inputs: list[FloatTensor]


class IntRequest(BaseModel):
    """A request to a model of whole numbers."""

    inputs: list[IntTensor]


class InferResponse(BaseModel):
    """The answer."""

    model_name: str
    outputs: list[IntTensor | FloatTensor]


def make_app(models: dict[str, str]) -> FastAPI:
    """Return the app; ``models``: path of the ONNX file by name."""
    app = FastAPI()
    for name, path in models.items():
        add_route(app, name, path)
    return app


def add_route(app: FastAPI, name: str, path: str) -> None:
    """Add one model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    output_names = [output.name for output in session.get_outputs()]

    def answer(request: Any) -> InferResponse:
        try:
            feed = {
                tensor.name: np.array(tensor.data, NUMPY[tensor.datatype]).reshape(tensor.shape)
                for tensor in request.inputs
            }
            results = session.run(None, feed)
        except Exception as error:
            raise HTTPException(400, str(error)) from error
        return InferResponse(
            model_name=name,
            outputs=[
                output(each, value) for each, value in zip(output_names, results, strict=True)
            ],
        )

    if "int" in session.get_inputs()[0].type:

        @app.post(f"/v2/models/{name}/infer")
        async def infer_whole(request: IntRequest) -> InferResponse:
            return answer(request)

    else:

        @app.post(f"/v2/models/{name}/infer")
        async def infer(request: FloatRequest) -> InferResponse:
            return answer(request)


def output(name: str, value: Any) -> IntTensor | FloatTensor:
    """Return one output."""
    if value.dtype == np.int64:
        return IntTensor(
            name=name, shape=list(value.shape), datatype="INT64", data=value.ravel().tolist()
        )
    return FloatTensor(
        name=name, shape=list(value.shape), datatype="FP32", data=value.ravel().tolist()
    )


def main() -> None:
    """Serve as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FILE")
    options = parser.parse_args()
    app = make_app(dict(each.split("=", 1) for each in options.model))
    uvicorn.run(
        app, port=options.port, loop="uvloop", http="httptools",
        log_level="warning", access_log=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
