"""What the commands print: tables, JSON, sizes, and progress of what takes over a second."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

# Nothing that ends sooner shows any progress.
QUIET_S: Final = 1.0
# A table that goes into a file or a pipe is never folded.
_PIPE_COLUMNS: Final = 4000
_GAP_COLUMNS: Final = 2
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def print_json(document: object) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Say something that is not the result: it goes to stderr."""
    print(text, file=sys.stderr)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns; numbers stand to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if is_terminal else _PIPE_COLUMNS)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP_COLUMNS, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        is_numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    if is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def terminal_columns() -> int:
    """Return how wide the terminal is; COLUMNS of the environment goes first."""
    return shutil.get_terminal_size((80, 24)).columns


def fits(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> bool:
    """Say whether a table needs no folding: it is no terminal that it goes to, or wide enough."""
    if not sys.stdout.isatty():
        return True
    cells = [columns, *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    wide = terminal_columns()
    return sum(widths) + _GAP_COLUMNS * len(widths) <= wide


def _cell(value: object) -> str:
    # A name or reason from elsewhere must not be able to steer the terminal.
    text = "-" if value is None or value == "" else str(value)
    return "".join(c if c.isprintable() else " " for c in text)


def size_text(size_bytes: int | None) -> str:
    """Return ``1.5 GiB`` and the like; ``-`` where it is not known."""
    if size_bytes is None:
        return "-"
    size, unit = float(size_bytes), 0
    while abs(size) >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def count_text(count: object, noun: str) -> str:
    """Return ``1 row`` or ``2 rows``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class Bar:
    """A progress bar on a terminal that appears only once QUIET_S have passed."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: float, total: float, stage: str = "") -> None:
        """Show ``done`` of ``total``."""
        if not sys.stderr.isatty() or time.monotonic() - self._began < QUIET_S:
            return
        if self._progress is None or self._task is None:
            self._progress = _progress()
            self._task = self._progress.add_task(self._title, total=total)
            self._progress.start()
        title = f"{self._title}: {stage}" if stage else self._title
        self._progress.update(self._task, completed=done, total=total, description=title)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """Give a Bar that is gone afterwards, whatever happens."""
    shown = Bar(title)
    try:
        yield shown
    finally:
        shown.close()


@contextmanager
def working(title: str) -> Iterator[None]:
    """Show on a terminal that something of unknown length goes on, once QUIET_S have passed."""
    if not sys.stderr.isatty():
        yield
        return
    status = _error_console().status(title)
    lock = threading.Lock()
    is_over = False

    def begin() -> None:
        with lock:
            if not is_over:
                status.start()

    timer = threading.Timer(QUIET_S, begin)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True
            status.stop()


def operation_progress(shown: Bar) -> Callable[[dict[str, object]], None]:
    """Return what shows an operation of the server in a bar."""

    def show(operation: dict[str, object]) -> None:
        done = operation.get("progress")
        stage = operation.get("stage")
        shown.update(float(done) if isinstance(done, int | float) else 0.0, 1.0, str(stage or ""))

    return show


def _progress() -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=_error_console(),
        transient=True,
    )


def _error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)
