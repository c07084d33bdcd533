"""Pushes a package: uploads in parallel what the server lacks, then registers the version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from models.package import ObjectSource, Package
from serving.client.admin import AdminClient
from serving.client.errors import ClientError

UPLOADS_AT_ONCE: Final = 4
T = TypeVar("T")
# Called with bytes sent, bytes to send, and bytes that the server has already.
Report: TypeAlias = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class PushResult:
    """What a push did. ``created`` is False where the version was there already."""

    model: str
    version: int
    digest: str
    created: bool
    objects_sent: int
    bytes_sent: int
    bytes_saved: int


class _Progress:
    """Counts bytes from several threads; an upload that starts anew is taken back first."""

    def __init__(self, report: Report | None, total_bytes: int, saved_bytes: int) -> None:
        self._report = report
        self._total_bytes = total_bytes
        self._saved_bytes = saved_bytes
        self._sent_bytes = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._sent_bytes += size_bytes
            if self._report is not None:
                self._report(self._sent_bytes, self._total_bytes, self._saved_bytes)


def push_package(
    client: AdminClient,
    package: Package,
    *,
    reason: str = "",
    progress: Report | None = None,
    before_registration: Callable[[], None] | None = None,
) -> PushResult:
    """Upload and register ``package``; an object of a file is never in memory as a whole.

    A push that was broken off and is repeated sends only what had not arrived: objects, and of a
    large one the bytes.
    ``progress`` is called from the uploading threads, one at a time.
    ``before_registration`` is called once everything is there: until then, nobody sees a version.
    """
    sources = {source.digest: source for source in package.objects}
    total_bytes = sum(source.size_bytes for source in sources.values())
    missing = _absent(client, list(sources.values()))
    _upload(client, missing, total_bytes, progress)
    sent = {source.digest for source in missing}
    manifest = package.manifest
    if before_registration is not None:
        before_registration()
    try:
        answer = client.register(manifest.model, manifest.to_json(), reason)
    except ClientError as error:
        # A clean-up on the server may have taken an object between our question and this call,
        # or it has only now read those that it held and found some damaged: it names them all.
        again = [sources[d] for d in error.document.get("missing", ()) if d in sources]
        if error.status != 409 or not again:
            raise
        _upload(client, again, total_bytes, progress)
        sent |= {source.digest for source in again}
        answer = client.register(manifest.model, manifest.to_json(), reason)
    bytes_sent = sum(sources[digest].size_bytes for digest in sent)
    return PushResult(
        model=manifest.model,
        version=answer["version"],
        digest=answer["digest"],
        created=bool(answer["created"]),
        objects_sent=len(sent),
        bytes_sent=bytes_sent,
        bytes_saved=total_bytes - bytes_sent,
    )


def _absent(client: AdminClient, sources: Sequence[ObjectSource]) -> list[ObjectSource]:
    held = _in_parallel(lambda source: client.has_object(source.digest, source.size_bytes), sources)
    return [source for source, is_held in zip(sources, held, strict=True) if not is_held]


def _upload(
    client: AdminClient,
    sources: Sequence[ObjectSource],
    total_bytes: int,
    report: Report | None,
) -> None:
    to_send = sum(source.size_bytes for source in sources)
    progress = _Progress(report, to_send, total_bytes - to_send)
    stop = threading.Event()

    def send(source: ObjectSource) -> None:
        sent_bytes = 0

        def chunks(start: int) -> Iterator[bytes]:
            nonlocal sent_bytes
            progress.add(start - sent_bytes)
            sent_bytes = start
            for chunk in _following(source, start):
                if stop.is_set():
                    raise ClientError("the upload was stopped")
                yield chunk
                sent_bytes += len(chunk)
                progress.add(len(chunk))

        client.put_object(source.digest, source.size_bytes, chunks)

    try:
        # Large ones first, so that the last upload does not run alone for long.
        _in_parallel(send, sorted(sources, key=lambda source: -source.size_bytes))
    finally:
        stop.set()


def _following(source: ObjectSource, start: int) -> Iterator[bytes]:
    """Yield the bytes of an object after the first ``start``, which are read and not sent."""
    for chunk in source.chunks():
        if start < len(chunk):
            yield chunk[start:]
        start = max(0, start - len(chunk))


def _in_parallel(work: Callable[[ObjectSource], T], sources: Sequence[ObjectSource]) -> list[T]:
    executor = ThreadPoolExecutor(UPLOADS_AT_ONCE, thread_name_prefix="upload")
    try:
        futures: list[Future[T]] = [executor.submit(work, source) for source in sources]
        return [future.result() for future in futures]
    finally:
        # On a failure or Ctrl-C nothing that waits is begun, and nobody waits for what runs.
        executor.shutdown(wait=False, cancel_futures=True)
