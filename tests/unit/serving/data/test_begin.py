"""The callback way into the data plane: one answer for each call, or none after a cancel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from models.errors import InputRefused
from models.servable import Array
from registry.model_settings import ModelSettings
from serving.data.batcher import BatchLimits
from serving.data.call import Answer, InferCall, RequestHead
from serving.data.request import OFF_LOOP_BYTES, Decoded
from serving.data.response_cache import ResponseCache
from serving.data.served import ServedVersion
from serving.metrics import layout
from serving.metrics.reading import find_block
from serving.settings import Settings
from tests.fakes import FakeServable
from tests.unit.serving.data.rig import DIGEST, Plane, small, until

HEAD = RequestHead("id-1")


def body_of(value: float, **more: Any) -> bytes:
    """Return a V2 request of one row of four equal numbers."""
    item = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
    return orjson.dumps({"inputs": [item], **more})


def call_of(value: float, model: str = "fraud", **more: Any) -> InferCall:
    """Return a V2 call."""
    return InferCall("v2", model, None, HEAD, body_of(value, **more))


def data_of(answer: Answer) -> list[float]:
    """Return the numbers of an answer's first output."""
    data: list[float] = json.loads(answer.body)["outputs"][0]["data"]
    return data


class Inbox:
    """Takes answers in the order in which they come."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def __call__(self, answer: Answer) -> None:
        self.answers.append(answer)

    async def holds(self, count: int) -> list[Answer]:
        """Wait until so many are here."""
        await until(lambda: len(self.answers) >= count)
        return self.answers


def is_idle(plane: Plane, model: str = "fraud") -> bool:
    """Whether nothing is held any more: permits, handles, gauges."""
    served = plane.views[model][3].target
    assert served is not None
    return (
        plane.data_plane.in_flight == 0
        and plane.serving_map.handles(model, 3) == 0
        and served.gate.in_flight == 0
        and served.counters.in_flight == 0
        and served.counters.queue_depth == 0
    )


async def test_calls_of_one_pass_share_a_run_and_each_gets_its_own(plane: Plane) -> None:
    """64 calls, one run, 64 answers with their own rows and head."""
    servable = FakeServable()
    plane.add(servable=servable, limits=BatchLimits(256, 64, 60.0))
    inboxes = [Inbox() for _ in range(64)]
    for value, inbox in enumerate(inboxes):
        plane.data_plane.begin(call_of(value, id=f"caller-{value}"), inbox)
    for value, inbox in enumerate(inboxes):
        (answer,) = await inbox.holds(1)
        assert (answer.status, data_of(answer)) == (200, [float(value)] * 4)
        assert json.loads(answer.body)["id"] == f"caller-{value}"
    assert servable.run_rows == [64]
    assert is_idle(plane)


async def test_the_prepared_head_says_what_the_headers_say(plane: Plane) -> None:
    """A front may write the prefix, the id and the length instead of the list."""
    plane.add()
    inbox = Inbox()
    plane.data_plane.begin(call_of(1), inbox)
    (answer,) = await inbox.holds(1)
    lines = [b"%s: %s\r\n" % line for line in answer.headers if line[0] != b"x-request-id"]
    assert sorted(answer.version_prefix.splitlines(keepends=True)) == sorted(lines)
    assert (b"x-request-id", b"id-1") in answer.headers
    assert (b"x-ramrack-digest", DIGEST.encode()) in answer.headers


@pytest.mark.parametrize(
    "call",
    [
        InferCall("v2", "nobody", None, HEAD, b"{"),
        InferCall("v2", "not a name", None, HEAD, b"{"),
        InferCall("v2", "fraud", "nothing", HEAD, b"{"),
        InferCall("v2", "fraud", None, HEAD, b"{"),
        InferCall("v1", "fraud", None, HEAD, b"[]"),
        InferCall("v2", "fraud", None, RequestHead("i", timeout_ms="x"), body_of(1)),
        InferCall("v2", "fraud", None, RequestHead("i", json_length="x"), body_of(1)),
    ],
)
async def test_what_is_wrong_is_answered_before_begin_returns(
    plane: Plane, call: InferCall
) -> None:
    """A refusal needs no pass of the loop; a late cancel does nothing."""
    plane.add()
    inbox = Inbox()
    pending = plane.data_plane.begin(call, inbox)
    assert [answer.status for answer in inbox.answers] in ([400], [404])
    pending.cancel()
    assert is_idle(plane)


async def test_a_cancelled_call_is_told_nothing_and_holds_nothing(plane: Plane) -> None:
    """Queued, running, being decoded: the client left, its permits are free at once."""
    servable = FakeServable(hold=True)
    plane.add(servable=servable)
    inbox = Inbox()
    large = InferCall("v2", "fraud", None, HEAD, body_of(3) + b" " * OFF_LOOP_BYTES)
    running = plane.data_plane.begin(call_of(1), inbox)
    await asyncio.to_thread(servable.entered.wait, 10)
    queued = plane.data_plane.begin(call_of(2), inbox)
    decoding = plane.data_plane.begin(large, inbox)
    for pending in (running, queued, decoding, queued):
        pending.cancel()
    assert is_idle(plane)
    servable.release()
    last = Inbox()
    plane.data_plane.begin(call_of(4), last)
    assert data_of((await last.holds(1))[0]) == [4.0] * 4
    assert inbox.answers == []
    assert servable.run_rows == [1, 1]


async def test_a_large_body_is_decoded_off_the_loop_to_the_same_answer(plane: Plane) -> None:
    """White space behind the document makes it large and changes nothing else."""
    plane.add()
    small_one, large_one = Inbox(), Inbox()
    body = body_of(5)
    plane.data_plane.begin(InferCall("v2", "fraud", None, HEAD, body), small_one)
    large = InferCall("v2", "fraud", None, HEAD, body + b" " * OFF_LOOP_BYTES)
    plane.data_plane.begin(large, large_one)
    assert (await small_one.holds(1))[0].body == (await large_one.holds(1))[0].body


async def test_one_bad_row_of_a_shared_run_fails_alone(plane: Plane) -> None:
    """Its caller gets the 400, the others their rows."""

    def compute(inputs: Mapping[str, Array]) -> list[Array]:
        if (inputs["x"] == 7).any():
            raise InputRefused("index 7 is out of range")
        return [inputs["x"]]

    plane.add(servable=FakeServable(compute))
    inboxes = [Inbox() for _ in range(16)]
    for value, inbox in enumerate(inboxes):
        plane.data_plane.begin(call_of(value), inbox)
    answers = [(await inbox.holds(1))[0] for inbox in inboxes]
    assert [answer.status for answer in answers] == [400 if v == 7 else 200 for v in range(16)]
    assert is_idle(plane)


class TestPermits:
    """What is refused, is refused before its body is looked at."""

    @pytest.fixture
    def settings(self) -> Settings:
        return small(Settings(), max_in_flight=2)

    async def test_a_full_worker_refuses_without_parsing(self, plane: Plane) -> None:
        """The body is no JSON, and nobody notices."""
        servable = FakeServable(hold=True)
        plane.add(servable=servable)
        inbox, refused = Inbox(), Inbox()
        for value in (1, 2):
            plane.data_plane.begin(call_of(value), inbox)
        plane.data_plane.begin(InferCall("v2", "fraud", None, HEAD, b"\xff"), refused)
        (answer,) = refused.answers
        assert (answer.status, json.loads(answer.body)) == (
            429,
            {"error": "requests in flight: 2 of 2 in this worker"},
        )
        assert (b"retry-after", b"1") in answer.headers
        servable.release()
        await inbox.holds(2)
        assert is_idle(plane)


async def test_a_full_model_refuses_and_the_other_answers(plane: Plane) -> None:
    """max_concurrency is of the model, over all its versions, and names it."""
    servable = FakeServable(hold=True)
    busy = plane.add("batch", 3, servable=servable)
    busy.apply(ModelSettings(max_concurrency=1), plane.settings)
    plane.add("quick", 3)
    inbox, refused, quick = Inbox(), Inbox(), Inbox()
    plane.data_plane.begin(call_of(1, "batch"), inbox)
    plane.data_plane.begin(InferCall("v2", "batch", None, HEAD, b"\xff"), refused)
    plane.data_plane.begin(call_of(2, "quick"), quick)
    (answer,) = refused.answers
    assert answer.status == 429
    assert "model batch: 1 of 1 requests (max_concurrency)" in json.loads(answer.body)["error"]
    assert (b"x-ramrack-version", b"3") in answer.headers
    assert (await quick.holds(1))[0].status == 200
    servable.release()
    assert (await inbox.holds(1))[0].status == 200
    assert is_idle(plane, "batch")
    region = plane.memory.region(0)
    assert region[layout.REJECTED + layout.REASON_CELL["max_concurrency"]] == 1


@pytest.mark.parametrize(
    ("of_model", "status", "part"),
    [
        (ModelSettings(max_output_bytes=15), 413, "16 bytes, at most 15"),
        (ModelSettings(max_output_bytes=16), 200, ""),
        (ModelSettings(), 200, ""),
    ],
)
async def test_settings_of_a_model_hold_without_a_reload(
    plane: Plane, of_model: ModelSettings, status: int, part: str
) -> None:
    """The next request sees them, and their absence brings the server's own back."""
    version = plane.add()
    version.apply(ModelSettings(max_output_bytes=1), plane.settings)
    version.apply(of_model, plane.settings)
    inbox = Inbox()
    plane.data_plane.begin(call_of(1), inbox)
    (answer,) = await inbox.holds(1)
    assert answer.status == status
    assert part in answer.body.decode()


async def test_the_deadline_of_a_model_holds_without_a_reload(plane: Plane) -> None:
    """timeout_ms of the model ends what waits longer."""
    servable = FakeServable(hold=True)
    version = plane.add(servable=servable)
    version.apply(ModelSettings(timeout_ms=1), plane.settings)
    inbox = Inbox()
    plane.data_plane.begin(call_of(1), inbox)
    assert (await inbox.holds(1))[0].status == 504
    servable.release()


def cached(plane: Plane, compute: Callable[..., list[Array]] | None = None) -> FakeServable:
    """Add a version with a response cache."""
    servable = FakeServable(compute) if compute else FakeServable()
    plane.add(servable=servable).cache = ResponseCache(1 << 20)
    return servable


async def test_an_equal_request_is_answered_from_the_cache(plane: Plane) -> None:
    """The same numbers, another id: one run, the same bytes but for the id, both counted."""
    servable = cached(plane)
    first, again = Inbox(), Inbox()
    plane.data_plane.begin(call_of(1, id="a"), first)
    await first.holds(1)
    plane.data_plane.begin(call_of(1, id="b"), again)
    (answer,) = again.answers
    assert answer.body == first.answers[0].body.replace(b'"id":"a"', b'"id":"b"')
    assert servable.run_rows == [1]
    found = plane.memory.statistics("fraud", 3)
    stats = found["inference_stats"]
    assert (stats["success"]["count"], stats["compute_infer"]["count"]) == (2, 1)
    assert (stats["cache_hit"]["count"], stats["cache_miss"]["count"]) == (1, 1)
    # Rows and runs that were computed: an answer that was kept is neither.
    assert (found["inference_count"], found["execution_count"]) == (1, 1)
    cells = find_block(plane.memory.region(0), ("fraud", 3))
    assert cells is not None
    assert (cells[layout.ROWS], cells[layout.CACHE_HITS]) == (2, 1)
    assert is_idle(plane)


async def test_a_failure_is_not_kept(plane: Plane) -> None:
    """The next try is computed again."""
    servable = cached(plane, lambda inputs: 1 / 0)
    inbox = Inbox()
    for turn in (1, 2):
        plane.data_plane.begin(call_of(1), inbox)
        await inbox.holds(turn)
    assert [answer.status for answer in inbox.answers] == [500, 500]
    assert len(servable.runs) == 2


async def test_an_answer_from_the_cache_keeps_its_numbers(plane: Plane) -> None:
    """What is kept is a copy: the arrays of the run may be used for the next one."""
    shared = np.zeros((1, 4), np.float32)

    def compute(inputs: Mapping[str, Array]) -> list[Array]:
        shared[:] = inputs["x"]
        return [shared]

    cached(plane, compute)
    inbox = Inbox()
    for turn, value in enumerate((1, 2, 1), start=1):
        plane.data_plane.begin(call_of(value), inbox)
        await inbox.holds(turn)
    assert data_of(inbox.answers[2]) == [1.0] * 4


async def test_whoever_wants_it_is_told_of_each_answer(plane: Plane) -> None:
    """After the caller has its answer, and never of what failed."""
    plane.add()
    seen: list[tuple[str, int, list[float]]] = []
    inbox = Inbox()

    def told(call: InferCall, served: ServedVersion, asked: Decoded, arrays: list[Array]) -> None:
        assert len(inbox.answers) == 1
        seen.append((call.model, served.version, arrays[0].ravel().tolist()))
        assert asked.rows == 1

    plane.data_plane.on_answered = told
    plane.data_plane.begin(call_of(1), inbox)
    await inbox.holds(1)
    plane.data_plane.begin(InferCall("v2", "fraud", None, HEAD, b"{"), inbox)
    assert seen == [("fraud", 3, [1.0] * 4)]


async def test_idleness_is_told_once_with_the_begin_of_what_ended_it(plane: Plane) -> None:
    """Of calls that overlap the first begin counts, and the last end, whatever its kind."""
    servable = FakeServable(hold=True)
    plane.add(servable=servable)
    data_plane, inbox = plane.data_plane, Inbox()
    looks: list[int] = []
    began: list[int] = []
    real_clock = data_plane.clock

    def clock() -> int:
        looks.append(real_clock())
        return looks[-1]

    data_plane.clock = clock
    data_plane.on_idle = began.append
    data_plane.begin(call_of(1), inbox)
    await asyncio.to_thread(servable.entered.wait, 10)
    data_plane.begin(call_of(2), inbox).cancel()
    assert began == []
    servable.release()
    await inbox.holds(1)
    assert began == [looks[0]]
    looks.clear()
    data_plane.begin(InferCall("v2", "fraud", None, HEAD, b"{"), inbox)
    assert began[1:] == [looks[0]]
    # What found no version was never under way.
    data_plane.begin(InferCall("v2", "nobody", None, HEAD, b"{"), inbox)
    assert len(began) == 2
