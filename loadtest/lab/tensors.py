"""Arrays to and from the binary form of the Open Inference Protocol V2."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DTYPES: Final[Mapping[str, str]] = {
    "FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "INT32": "<i4", "BOOL": "?",
}  # fmt: skip


def encode(arrays: Mapping[str, NDArray[Any]], datatypes: Mapping[str, str]) -> tuple[bytes, int]:
    """Return a request body and the length of its JSON head."""
    blobs, inputs = [], []
    for name, array in arrays.items():
        datatype = datatypes[name]
        blob = _texts(array) if datatype == "BYTES" else array.astype(DTYPES[datatype]).tobytes()
        blobs.append(blob)
        inputs.append({
            "name": name, "shape": list(array.shape), "datatype": datatype,
            "parameters": {"binary_data_size": len(blob)},
        })  # fmt: skip
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(blobs), len(head)


def decode(body: bytes, head_bytes: int) -> dict[str, NDArray[Any]]:
    """Return the outputs of an answer by name; texts as an array of ``str``."""
    found: dict[str, NDArray[Any]] = {}
    at = head_bytes
    for output in json.loads(body[:head_bytes])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        blob, at = body[at : at + size], at + size
        if output["datatype"] == "BYTES":
            flat = np.array(_split(blob), dtype=str)
        else:
            flat = np.frombuffer(blob, DTYPES[output["datatype"]])
        found[output["name"]] = flat.reshape(output["shape"])
    return found


def _texts(array: NDArray[Any]) -> bytes:
    encoded = [str(value).encode() for value in array.ravel()]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def _split(blob: bytes) -> list[str]:
    texts, at = [], 0
    while at < len(blob):
        (size,) = struct.unpack_from("<I", blob, at)
        texts.append(blob[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return texts
