"""The log of requests: none, so many of each second, or all."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from serving.settings import load_settings
from serving.web.access_log import AccessLog


class Clock:
    """Seconds that the test drives."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Lines(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[Any]]:
    logger, lines = logging.getLogger("serving.web.access_log"), Lines()
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    yield lines.records
    logger.removeHandler(lines)
    logger.setLevel(logging.NOTSET)


def log(access_log: AccessLog, status: int, times: int = 1) -> None:
    for _ in range(times):
        access_log.write("id", "127.0.0.1", "POST", "/p" * 300, status, 0.0012345)


def test_a_sample_has_so_many_lines_a_second(records: list[Any]) -> None:
    """Beyond them requests are counted, and the next line of the kind says how many."""
    clock = Clock()
    sampled = AccessLog(2, clock)
    log(sampled, 200, times=5)
    assert [r.skipped for r in records] == [0, 0]
    clock.now_s += 1
    log(sampled, 200)
    assert [r.skipped for r in records] == [0, 0, 3]
    log(sampled, 200)
    assert records[-1].skipped == 0


def test_a_flood_of_good_answers_hides_no_error(records: list[Any]) -> None:
    """Errors, and requests without an answer, have lines of their own, and good answers too."""
    sampled = AccessLog(1, Clock())
    log(sampled, 200, times=100)
    log(sampled, 503)
    log(sampled, 0, times=100)
    assert [(r.status, r.skipped) for r in records] == [(200, 0), (503, 0)]


def test_all_means_all(records: list[Any]) -> None:
    """Without a bound every request has its line, and a long path is cut."""
    log(AccessLog(), 200, times=50)
    assert len(records) == 50
    assert (len(records[0].path), records[0].duration_ms) == (200, 1.234)
    assert not hasattr(records[0], "skipped")


@pytest.mark.parametrize(("mode", "lines"), [("off", None), ("all", 7), ("sampled", 3)])
def test_the_setting_decides(records: list[Any], mode: str, lines: int | None) -> None:
    """off, sampled and all are what access_log takes."""
    flags = {"access_log": mode, "access_log_per_s": 3}
    access_log = AccessLog.of(load_settings(None, {}, flags))
    if lines is None:
        assert access_log is None
        return
    assert access_log is not None
    access_log._clock = Clock()
    log(access_log, 200, times=7)
    assert len(records) == lines
