"""Prints the reference pages that are made from code: ``reference.py settings`` or ``cli``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import typer

from serving.cli.app import command
from serving.settings import ENV_PREFIX, SCOPES, Settings

SETTINGS_HEAD = f"""\
# Settings

Written by `scripts/docs` from `serving/settings.py`; a test holds it to the code.

Each setting may come from four places; a later one wins:

1. its default,
2. `ramrack.toml` in the folder that `ramrack serve` is started in, or the file that `--config` or
   `RAMRACK_CONFIG` names: `queue_rows = 4096`,
3. the environment: `{ENV_PREFIX}QUEUE_ROWS=4096`,
4. a flag of `ramrack serve`, for those that have one (see [CLI.md](CLI.md)).

An unknown key stops the start and names the nearest one that exists. Sizes are bytes, or a number
with a unit: `64MiB`, `2GiB`, `500MB` (KiB, MiB, GiB, TiB count by 1024, KB, MB, GB, TB by 1000).
Names that end in `_s` are seconds, in `_ms` milliseconds, in `_bytes` bytes. Where 0 has a meaning
of its own, the description says it.

| setting | default | allowed | what it does |
| --- | --- | --- | --- |
"""
SETTINGS_FOOT = f"""
## Tokens

A token is a table in the config file. Only the SHA-256 of its text is kept:

```toml
[[tokens]]
name = "ci"
sha256 = "..."                   # printf %s "$TOKEN" | sha256sum
scopes = ["read", "push", "promote"]  # of {", ".join(SCOPES)}
```

`ramrack push` needs `push`; with `--load`, `--alias` or `--promote` also `read` and `promote`.

## Variables that are not settings

| variable | what it is for |
| --- | --- |
| `RAMRACK_CONFIG` | path of the config file |
| `RAMRACK_ADMIN_TOKEN` | server: a token with all scopes; client: the token it sends |
| `RAMRACK_TOKEN` | client: the token it sends to the data plane |
| `RAMRACK_URL`, `RAMRACK_ADMIN_URL` | client: addresses of both planes |
"""
CLI_HEAD = """\
# Command line

Written by `scripts/docs` from `serving/cli`; a test holds it to the code.

Exit code 0: done. 1: it failed, and stderr has the reason. 2: wrong usage. Results go to stdout,
everything else to stderr, so `--json` can always be piped on. A token is taken from
`RAMRACK_ADMIN_TOKEN` (admin plane) or `RAMRACK_TOKEN` (data plane), never from a flag, because
flags can be read by every user of the machine.

"""


def settings_page() -> str:
    """Return docs/SETTINGS.md."""
    return SETTINGS_HEAD + "".join(map(_setting_row, dataclasses.fields(Settings))) + SETTINGS_FOOT


def _setting_row(field: dataclasses.Field[object]) -> str:
    return f"| `{field.name}` | {_default(field)} | {_allowed(field)} | {field.metadata['doc']} |\n"


def _default(field: dataclasses.Field[object]) -> str:
    value = field.default
    if value in ("", ()):
        return "none"
    low = field.metadata["low"]
    if low is not None and isinstance(value, int | float) and value < low:
        return "not set"
    if field.metadata["is_size"] and isinstance(value, int) and value and value % 1024 == 0:
        is_mib = value % 1024**2 == 0
        return f"`{value // 1024**2}MiB`" if is_mib else f"`{value // 1024}KiB`"
    return f"`{value}`" if isinstance(value, str | Path) else str(value)


def _allowed(field: dataclasses.Field[object]) -> str:
    low, high, choices = (field.metadata[key] for key in ("low", "high", "choices"))
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"{low} or more" if low is not None else ""


def cli_page() -> str:
    """Return docs/CLI.md."""
    group = command()
    page = CLI_HEAD
    for name, one in group.commands.items():
        context = typer.Context(one, info_name=f"ramrack {name}")
        arguments = [p for p in one.params if p.param_type_name == "argument"]
        words = " ".join(_plain_name(p) for p in arguments)
        page += f"## {name}\n\n{one.help}\n\n```\nramrack {name} [OPTIONS] {words}".rstrip()
        page += "\n```\n\n| option | what it does |\n| --- | --- |\n"
        for parameter in one.get_params(context):
            record = parameter.get_help_record(context)
            if parameter.name == "help" or record is None:
                continue
            left = _plain_name(parameter) if parameter in arguments else record[0]
            page += f"| `{left}` | {_option_help(parameter)} |\n"
        page += "\n"
    return page.rstrip() + "\n"


def _plain_name(parameter: object) -> str:
    name = str(getattr(parameter, "metavar", None) or getattr(parameter, "name", ""))
    return name if getattr(parameter, "required", True) else f"[{name}]"


def _option_help(parameter: object) -> str:
    text = str(getattr(parameter, "help", "") or "")
    variable = getattr(parameter, "envvar", None)
    default = getattr(parameter, "default", None)
    if default not in (None, "", False, ()) and not callable(default):
        text += f" Default: `{default}`."
    return text + (f" Variable: `{variable}`." if variable else "")


if __name__ == "__main__":
    print({"settings": settings_page, "cli": cli_page}[sys.argv[1]](), end="")
