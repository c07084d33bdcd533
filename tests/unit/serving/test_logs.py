"""Log lines: one JSON object or one line of text each, whatever they hold."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from serving.logs import configure_logs
from serving.settings import Settings

NAMES = (
    "", "ramrack", "registry", "models", "serving", "uvicorn", "uvicorn.error", "uvicorn.access",
    "uvicorn.asgi", "py.warnings",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging is one for the process: leave it as it was."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(x, x.level, x.propagate, x.disabled, x.handlers[:]) for x in loggers]
    yield
    logging.captureWarnings(capture=False)
    for logger, level, propagate, disabled, handlers in before:
        logger.setLevel(level)
        logger.propagate, logger.disabled, logger.handlers = propagate, disabled, handlers


def configured(**settings: Any) -> io.StringIO:
    stream = io.StringIO()
    configure_logs(Settings(**settings), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object() -> None:
    """Time in UTC, level, logger, message, then what the call gave as extra."""
    stream = configured()
    logging.getLogger("serving.x").info(
        "done %s", "well", extra={"request_id": "r1", "model": "m", "version": 3}
    )
    (line,) = lines(stream)
    assert list(line)[:4] == ["time", "level", "logger", "message"]
    assert datetime.fromisoformat(line.pop("time")).utcoffset().total_seconds() == 0  # type: ignore[union-attr]
    assert line == {
        "level": "info", "logger": "serving.x", "message": "done well", "request_id": "r1",
        "model": "m", "version": 3,
    }  # fmt: skip


def test_an_exception_is_told_with_its_traceback() -> None:
    """The traceback stands in the log, in one field of the one line."""
    stream = configured()
    try:
        raise ValueError("inner text")
    except ValueError:
        logging.getLogger("serving").exception("failed")
    (line,) = lines(stream)
    assert line["message"] == "failed"
    assert "Traceback" in line["exception"]
    assert "ValueError: inner text" in line["exception"]


@pytest.mark.parametrize(
    "extra",
    [{"a": object()}, {"a": b"\xff"}, {"a": "\ud800"}, {"a": 2**70}, {"a": {1: {2}}}, {"a": 1.5}],
)
def test_odd_values_never_break_a_line(extra: dict[str, Any]) -> None:
    """Whatever is logged, a JSON line comes out."""
    stream = configured()
    logging.getLogger("serving").warning("odd", extra=extra)
    (line,) = lines(stream)
    assert "a" in line


def test_extra_fields_hide_nothing() -> None:
    """An extra field with the name of a standard one is left out."""
    stream = configured()
    logging.getLogger("serving").warning("kept", extra={"level": "fake", "logger": "fake"})
    (line,) = lines(stream)
    assert (line["level"], line["logger"]) == ("warning", "serving")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_nobody_can_fake_a_line(log_format: str) -> None:
    """Line breaks and terminal controls from a client stay inside their line."""
    stream = configured(log_format=log_format)
    logging.getLogger("serving").warning("from %s", "a\nb\r\x1b[31m\u2028", extra={"id": "x\ny"})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_text_for_people() -> None:
    """Text lines carry the same fields, and the traceback below."""
    stream = configured(log_format="text")
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("serving.x").exception("failed", extra={"model": "m"})
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("ERROR   serving.x: failed model=m")
    assert rest[-1] == "ValueError: inner"


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)],
)
def test_the_level_holds_for_our_loggers(level: str, expected: int) -> None:
    """log_level is the least severity of our own lines."""
    stream = configured(log_level=level)
    logger = logging.getLogger("serving.level")
    for method in (logger.debug, logger.info, logger.warning, logger.error):
        method("line")
    assert len(lines(stream)) == expected


def test_other_libraries_speak_from_warning_up() -> None:
    """Chatter of libraries is not ours, their warnings are."""
    stream = configured(log_level="debug")
    logging.getLogger("httpx").info("GET http://example")
    logging.getLogger("httpx").warning("slow")
    assert [line["message"] for line in lines(stream)] == ["slow"]


def test_uvicorn_speaks_in_our_form() -> None:
    """uvicorn's own lines take our form, without its colours; its access lines are off."""
    logging.getLogger("uvicorn.error").addHandler(logging.StreamHandler(io.StringIO()))
    stream = configured()
    logging.getLogger("uvicorn.error").info("up", extra={"color_message": "\x1b[1mup"})
    logging.getLogger("uvicorn.access").info("GET /")
    (line,) = lines(stream)
    assert (line["message"], line["logger"]) == ("up", "uvicorn.error")
    assert "color_message" not in line


def test_python_warnings_become_lines() -> None:
    """A warning does not break the stream of JSON lines."""
    stream = configured()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", UserWarning, stacklevel=1)
    (line,) = lines(stream)
    assert "UserWarning: old" in line["message"]


def test_configuring_again_replaces() -> None:
    """The second form replaces the first; handlers of others stay."""
    other = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(other)
    first = configured()
    second = configured()
    logging.getLogger("serving").warning("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1
    assert other in logging.getLogger().handlers
