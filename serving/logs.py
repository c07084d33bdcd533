"""Structured logs: one JSON object a line for machines, or one line of text for people.

Fields: ``time`` (UTC), ``level``, ``logger``, ``message``, what the call gave as ``extra`` (such as
``request_id``, ``model``, ``version``), and ``exception`` with the traceback. Tracebacks stand here
only; no answer carries one. Bodies, tensors and tokens are never given to a logger.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson

from serving.settings import Settings

# uvicorn's "asctime" family and the names of LogRecord itself are not extra fields.
_STANDARD: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"}
)
_OURS: Final = ("ramrack", "registry", "models", "serving", "uvicorn")
_TEXT_TIME: Final = "%Y-%m-%d %H:%M:%S"


def configure_logs(settings: Settings, stream: TextIO | None = None) -> None:
    """Send all logs of this process to ``stream`` (default: stderr) in the form that is set.

    Our own loggers and uvicorn's follow ``log_level``; other libraries speak from warning up. May
    be called again: the former form is replaced.
    """
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    root.setLevel(max(level, logging.WARNING))
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # The planes log requests themselves where that is wished for.
    logging.getLogger("uvicorn.access").disabled = True
    logging.captureWarnings(capture=True)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, whatever the record holds."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; values that JSON lacks are written as text."""
        time = datetime.fromtimestamp(record.created, UTC)
        document: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _extra(record).items():
            document.setdefault(key, value)
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return _one_line(document)


class TextFormatter(logging.Formatter):
    """A line for people; only a traceback takes more than one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger, message and the extra fields."""
        time = datetime.fromtimestamp(record.created, UTC).strftime(_TEXT_TIME)
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items())
        message = _escaped(record.getMessage() + extra)
        line = f"{time} {record.levelname:<7} {record.name}: {message}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _Handler(logging.StreamHandler[TextIO]):
    """Marks the handler that ``configure_logs`` made, so that it alone is replaced."""


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _one_line(document: dict[str, Any]) -> str:
    try:
        return orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        # Lone surrogates and integers past 64 bits, which orjson does not write.
        return json.dumps(document, default=str)


def _escaped(text: str) -> str:
    """Return text without line breaks or terminal controls, so that nobody can fake a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
