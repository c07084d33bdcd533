"""``ramrack top``: what is loaded and how busy it is, live, until a key or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from serving.cli.options import ADMIN_URL_DEFAULT, AdminUrl, AsJson, admin_client
from serving.cli.output import print_json
from serving.cli.values import real
from serving.client.errors import ClientError

if TYPE_CHECKING:
    from serving.cli.top_reading import Reading
    from serving.client.admin import AdminClient

_QUIT: Final = (b"q", b"Q", b"\x1b")


def top(
    *,
    every_s: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", help="Time between two looks.",
                     parser=real(0.2, 3600)),
    ] = 1.0,
    is_once: Annotated[
        bool, typer.Option("--once", help="Look for that long, print one table, and end.")
    ] = False,
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:  # fmt: skip
    """Show what is loaded and how busy it is, live; q or Ctrl-C ends it."""
    from serving.cli.top_reading import read

    with admin_client(admin_url) as client:
        first = read(client)
        if is_once:
            _once(client, first, every_s, as_json=as_json)
            return
        # To leave it is how it ends: that is no failure.
        with contextlib.suppress(KeyboardInterrupt):
            if sys.stdout.isatty() and not as_json:
                _live(client, first, every_s, admin_url)
            else:
                _stream(client, first, every_s, as_json=as_json)


def _once(client: AdminClient, first: Reading, every_s: float, *, as_json: bool) -> None:
    from serving.cli.top_reading import compared, read
    from serving.cli.top_view import plain

    time.sleep(every_s)
    seen = compared(first, read(client))
    if as_json:
        print_json(seen)
    else:
        print(plain(seen))


def _stream(client: AdminClient, before: Reading, every_s: float, *, as_json: bool) -> None:
    """Print one table, or one line of JSON, after the other."""
    import json

    from serving.cli.top_reading import compared, read
    from serving.cli.top_view import plain

    while True:
        time.sleep(every_s)
        after = read(client)
        seen = compared(before, after)
        text = json.dumps(seen, ensure_ascii=False) if as_json else f"{plain(seen)}\n"
        print(text, flush=True)
        before = after


def _live(client: AdminClient, before: Reading, every_s: float, admin_url: str) -> None:
    from rich.console import Console
    from rich.live import Live

    from serving.cli.top_reading import compared, read
    from serving.cli.top_view import screen

    console = Console(highlight=False)
    seen = compared(before, before)
    with _keys() as is_quit, Live(
        screen(seen, admin_url, console), console=console, screen=True, auto_refresh=False
    ) as live:  # fmt: skip
        while not is_quit(every_s):
            problem = ""
            try:
                after = read(client)
                seen, before = compared(before, after), after
            except ClientError as error:
                # A server that restarts comes back; what was last seen stays on the screen.
                problem = str(error)
            live.update(screen(seen, admin_url, console, problem), refresh=True)


@contextmanager
def _keys() -> Iterator[Any]:
    """Give what waits for seconds and returns whether q or Escape was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds)
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def is_quit(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([number], [], [], left_s)[0]:
                pressed = os.read(number, 64)
                # No more bytes: the terminal is gone.
                if not pressed or pressed[:1] in _QUIT:
                    return True
        return False

    try:
        # One key at a time and without an echo; Ctrl-C stays a signal.
        tty.setcbreak(number)
        yield is_quit
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
