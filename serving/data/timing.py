"""The Server-Timing header: where the time of one request went, for clients that ask for it.

https://www.w3.org/TR/server-timing/ has the form; durations are milliseconds.
"""

from __future__ import annotations

from typing import Final

from serving.data.batch_queue import RunResult

_NS_PER_MS: Final = 1e6


def server_timing(total_ns: int, queue_ns: int, run: RunResult) -> tuple[bytes, bytes]:
    """Return the header line. ``total_ns``: until the answer was written; the rest is within it.

    Input, infer and output times are those of the run, with the rows of all who shared it.
    """
    parts = (
        ("total", total_ns),
        ("queue", queue_ns),
        ("input", run.input_ns),
        ("infer", run.infer_ns),
        ("output", run.output_ns),
    )
    text = ", ".join(f"{name};dur={ns / _NS_PER_MS:.3f}" for name, ns in parts)
    return b"server-timing", text.encode("ascii")
