"""A version that answers: what serves it, what is set for it, what all its answers say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from models.servable import Servable
from models.signature import Signature
from registry.manifest import JsonObject
from registry.model_settings import ModelSettings
from serving.codec.v2_plan import V2Plan
from serving.data.batch_run import GroupKey, usual_key
from serving.data.batcher import Batcher
from serving.data.model_gate import ModelGate
from serving.data.response_cache import ResponseCache
from serving.metrics.page import VersionCounters
from serving.settings import MIB, Settings
from serving.web.errors import JSON_TYPE, Headers

# What Triton calls the same runtime; its clients compare it.
ONNX_PLATFORM: Final = "onnxruntime_onnx"
NS_PER_MS: Final = 1_000_000
N = TypeVar("N", int, float)


@dataclass(slots=True, eq=False)
class ServedVersion:
    """A version that answers, with all that it needs to; the target of the serving map.

    ``cache``: of all versions of the worker; None: off. ``gate``: of all versions of the model.
    ``platform``: what clients are told of what computes it.
    ``headers``: what says of an answer which version it is about. ``json_prefix``: the lines of
    these and of the JSON content type. ``usual_key``: the group of what the plan decodes.
    """

    model: str
    version: int
    digest: str
    signature: Signature
    servable: Servable
    batcher: Batcher
    counters: VersionCounters
    timeout_ms: int
    max_output_bytes: int = 256 * MIB
    cache: ResponseCache | None = None
    gate: ModelGate = field(default_factory=lambda: ModelGate(""))
    platform: str = ONNX_PLATFORM
    plan: V2Plan = field(init=False)
    headers: Headers = field(init=False)
    json_prefix: bytes = field(init=False)
    usual_key: GroupKey = field(init=False)
    timeout_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.plan = V2Plan(
            self.signature, self.model, self.version, is_batchable=self.batcher.is_batchable
        )
        self.usual_key = usual_key(self.signature)
        self.headers = version_headers(self.version, self.digest)
        self.json_prefix = b"".join(b"%s: %s\r\n" % line for line in (JSON_TYPE, *self.headers))
        self.timeout_ns = self.timeout_ms * NS_PER_MS

    def apply(self, model: ModelSettings, server: Settings) -> None:
        """Take what is set for the model, and the server's own where nothing is; at once."""
        self.timeout_ms = _or(model.timeout_ms, server.timeout_ms)
        self.timeout_ns = self.timeout_ms * NS_PER_MS
        self.max_output_bytes = _or(model.max_output_bytes, server.max_output_bytes)
        self.gate.limit = model.max_concurrency
        limits = replace(
            self.batcher.limits,
            queue_rows=_or(model.queue_rows, server.queue_rows),
            queue_ms=_or(model.queue_ms, server.queue_ms),
            max_run_s=_or(model.max_run_s, server.max_run_s),
            max_batch_rows=server.max_batch_rows,
            max_delay_ms=server.max_queue_delay_ms,
            is_merging=model.batching is not False,
        )
        self.batcher.apply(limits, priority=model.priority or 0)


def platform_of(runtime: JsonObject) -> str:
    """Return what computes a version by its manifest: a library's name, or Triton's for ONNX."""
    library = runtime.get("library")
    return library if isinstance(library, str) else ONNX_PLATFORM


def version_headers(version: int, digest: str) -> Headers:
    """Return what says of an answer which version it is about."""
    return [
        (b"x-ramrack-version", str(version).encode("ascii")),
        (b"x-ramrack-digest", digest.encode("ascii")),
    ]


def _or(value: N | None, default: N) -> N:
    return default if value is None else value
