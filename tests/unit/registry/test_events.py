"""The event log: order, bounds, and what a crash in the middle of a line leaves."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from registry.errors import InvalidInput, StoreFailed, StoreFull
from registry.events import MAX_READ, Event, EventLog, parse_event
from registry.files import Files
from tests.disk_model import ModelDisk, UnsyncedFiles


def open_log(path: Path, files: Files | None = None) -> EventLog:
    return EventLog(path, files or UnsyncedFiles())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_events_come_back_as_they_were_written(path: Path) -> None:
    """All fields survive, in this process and the next."""
    log = open_log(path)
    seq = log.append(
        "routed", model="m", version=3, who="ci", address="127.0.0.1:9", reason="why \u2713\n",
        before={"split": []}, after={"split": [{"version": 3, "weight": 100}]},
    )  # fmt: skip
    (event,) = log.read()
    assert (seq, event.seq, event.reason) == (1, 1, "why \u2713\n")
    assert parse_event(json.loads(json.dumps(event.to_json()))) == event
    log.close()
    again = open_log(path)
    assert again.read() == [event]
    assert again.append("next") == 2


def test_reading_is_bounded_and_filtered(path: Path) -> None:
    """since is exclusive, limit counts matching events, and both are checked."""
    log = open_log(path)
    for number in range(1, 601):
        log.append("kind", model="even" if number % 2 == 0 else "odd")
    assert [e.seq for e in log.read(since=597)] == [598, 599, 600]
    assert [e.seq for e in log.read(since=300, model="even", limit=2)] == [302, 304]
    assert log.read(since=600) == []
    assert len(log.read(limit=MAX_READ)) == 600
    assert log.read(model="none") == []
    assert [e.seq for e in log.newest(limit=3)] == [598, 599, 600]
    assert [e.seq for e in log.newest("odd", 2)] == [597, 599]
    assert len(log.newest()) == 600
    assert log.newest("none") == []
    for limit in (0, -1, MAX_READ + 1):
        for read in (log.read, log.newest):
            with pytest.raises(InvalidInput, match="limit"):
                read(limit=limit)


@pytest.mark.slow
def test_a_torn_last_line_is_cut_off_at_every_length(path: Path) -> None:
    """Whatever part of the last line a crash left, it goes and the next event is whole."""
    log = open_log(path)
    for number in range(3):
        log.append(f"kind-{number}")
    log.close()
    whole = path.read_bytes()
    second_end = len(b"".join(whole.splitlines(keepends=True)[:2]))
    for length in range(second_end, len(whole)):
        path.write_bytes(whole[:length])
        log = open_log(path)
        assert path.stat().st_size == second_end
        assert log.append("after") == 3
        assert [e.kind for e in log.read()] == ["kind-0", "kind-1", "after"]
        log.close()


@pytest.mark.parametrize("tail", [b"\0" * 300, b"{}\n", b"null\n", b"[[[\n", b'{"seq":1}\n\xff\n'])
def test_rubbish_after_the_last_event_is_cut_off(path: Path, tail: bytes) -> None:
    """Zeros of a page that was never written, or lines that are no events, do not stay."""
    log = open_log(path)
    log.append("kind")
    log.close()
    good = path.read_bytes()
    path.write_bytes(good + tail)
    log = open_log(path)
    assert path.read_bytes() == good
    assert log.append("next") == 2


def test_a_damaged_line_in_the_middle_hides_only_itself(path: Path) -> None:
    """Later events stay readable and keep their numbers."""
    log = open_log(path)
    for number in range(3):
        log.append(f"kind-{number}")
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"#" + lines[1][1:] + lines[2])
    log = open_log(path)
    assert [e.seq for e in log.read()] == [1, 3]
    assert log.append("next") == 4


@pytest.mark.parametrize(
    ("error", "told"),
    [(errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull), (errno.EIO, StoreFailed)],
)
@pytest.mark.parametrize("step", ["write", "fsync", "truncate"])
def test_a_failed_append_leaves_the_record_as_it_was(
    tmp_path: Path, error: int, told: type[Exception], step: str
) -> None:
    """Half a line or a failed sync never becomes an event, and the next append starts clean."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = ModelDisk(root)
    log = open_log(root / "events.jsonl", disk)
    log.append("first")
    # The steps of an append that fails: write, then sync, then the cut of what was written.
    disk.fail_in(2 if step == "fsync" else 1, error, count=2 if step == "truncate" else 1)
    with pytest.raises(told):
        log.append("lost")
    assert [e.kind for e in log.read()] == ["first"]
    assert log.append("second") == 2
    log.close()
    disk.cut(tmp_path / "left", None)
    left = open_log(tmp_path / "left" / "events.jsonl")
    assert [e.kind for e in left.read()] == ["first", "second"]


def test_numbers_only_rise(path: Path) -> None:
    """An explicit number may leave a gap, never go back."""
    log = open_log(path)
    assert log.append("a", seq=5) == 5
    for seq in (5, 4, 0):
        with pytest.raises(InvalidInput, match="follow 5"):
            log.append("b", seq=seq)
    assert log.append("c") == 6
    assert [e.seq for e in log.read(since=5)] == [6]


def test_a_known_event_is_not_written_twice(path: Path) -> None:
    """The log is completed from a state that holds its last event, at every start."""
    log = open_log(path)
    event = Event(seq=1, time="2030-01-01T00:00:00.000Z", kind="routed", model="m")
    assert log.append_if_missing(event) == 1
    assert log.append_if_missing(event) == 1
    later = replace(event, seq=4)
    assert log.append_if_missing(later) == 4
    log.close()
    log = open_log(path)
    assert log.append_if_missing(later) == 4
    assert [e.seq for e in log.read()] == [1, 4]


def test_an_event_whose_number_went_to_another_gets_the_next_one_once(path: Path) -> None:
    """Completing the log again finds it under its new number."""
    log = open_log(path)
    log.append("taken")
    event = Event(seq=1, time="2030-01-01T00:00:00.000Z", kind="mine")
    assert log.append_if_missing(event) == 2
    assert log.append_if_missing(event) == 2
    assert [e.kind for e in log.read()] == ["taken", "mine"]


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"seq": 1},
        {"seq": 0, "time": "", "kind": "k"},
        {"seq": True, "time": "", "kind": "k"},
        {"seq": 1, "time": "", "kind": 1},
        {"seq": 1, "time": "", "kind": "k", "more": 1},
    ],
)
def test_what_is_no_event_is_refused(document: object) -> None:
    """Missing, unknown or wrong fields are InvalidInput."""
    with pytest.raises(InvalidInput, match="event"):
        parse_event(document)


def test_what_json_cannot_hold_is_refused_before_writing(path: Path) -> None:
    """NaN would make a line that strict readers refuse."""
    log = open_log(path)
    with pytest.raises(InvalidInput, match="JSON"):
        log.append("kind", after=float("nan"))
    assert path.read_bytes() == b""


def test_a_closed_log_takes_nothing(path: Path) -> None:
    """After close an append is told, and reading still works."""
    log = open_log(path)
    log.append("kind")
    log.close()
    log.close()
    with pytest.raises(StoreFailed, match="closed"):
        log.append("kind")
    assert len(log.read()) == 1


def test_lines_that_are_no_events_are_told(tmp_path: Path) -> None:
    """Garbage before an event, and a beginning that is gone, are damage; a torn end is none."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path, UnsyncedFiles())
    for _ in range(3):
        log.append("load")
    assert log.damage == ""
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    for content, told in (
        (b"\0\0\0\n" + b"".join(lines) + b'{"torn', "1 lines are no events"),
        (b"".join(lines[1:]), "it begins at number 2"),
        (b"".join(lines) + b'{"torn', ""),
    ):
        path.write_bytes(content)
        log = EventLog(path, UnsyncedFiles())
        assert told in log.damage
        assert bool(told) == bool(log.damage)
        log.close()
