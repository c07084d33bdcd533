"""All settings: one frozen object, checked once at start.

Order of sources, later ones win: defaults, ``ramrack.toml``, ``RAMRACK_*`` environment, flags.
Every field's metadata says what it is for; docs/SETTINGS.md is held to it by a test.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from registry.errors import InvalidInput
from registry.ident import shown

ENV_PREFIX: Final = "RAMRACK_"
# The settings file that is read where none is named, in the folder that the server starts in.
CONFIG_NAME: Final = "ramrack.toml"
# RAMRACK_* names that are not settings of the server.
ENV_OTHER: Final = frozenset({"ADMIN_TOKEN", "URL", "ADMIN_URL", "TOKEN", "CONFIG", "HANDOVER"})
SCOPES: Final = ("read", "push", "promote", "admin", "infer")
KIB: Final = 1024
MIB: Final = 1024**2
# Sizes go into 64-bit counters; nothing larger can be meant.
MAX_SIZE: Final = 2**62
# A week. Timers of the event loop overflow far beyond it.
MAX_SECONDS: Final = 604_800
_SIZE = re.compile(r"(\d+)\s*([KMGT]i?B?|B)?", re.IGNORECASE)
_DIGEST_HEX = re.compile("[0-9a-f]{64}")


def _setting(default: Any, doc: str, *, low: float | None = None, high: float | None = None,
             choices: tuple[str, ...] = (), is_size: bool = False,
             toml_only: bool = False, instead: str = "") -> Any:  # fmt: skip
    metadata = {
        "doc": doc, "low": low, "high": high, "choices": choices, "is_size": is_size,
        "toml_only": toml_only, "instead": instead,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its name, the SHA-256 of its text, and what it may do."""

    name: str
    sha256: str
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """What one server runs with."""

    store: Path = _setting(  # noqa: RUF009 - a Path never changes
        Path("ramrack-store"), "Folder of the store; made if it is not there."
    )
    host: str = _setting("127.0.0.1", "Address of the data plane.")
    port: int = _setting(8080, "Port of the data plane. 0: any free port.", low=0, high=65535)
    admin_host: str = _setting(
        "127.0.0.1", "Address of the admin plane. One that is not loopback needs a token."
    )
    admin_port: int = _setting(
        8081, "Port of the admin plane. 0: any free port.", low=0, high=65535
    )
    admin_hosts: str = _setting(
        "", "Further names that the Host header of the admin plane may carry, comma between them."
    )
    workers: int = _setting(
        0,
        "Worker processes. 0: one for each usable core, or for each threads_per_worker of them, at "
        "most 8.",
        low=0, high=256,
    )  # fmt: skip
    threads_per_worker: int = _setting(
        0, "Threads of one run inside a worker. 0: usable cores divided by workers.",
        low=0, high=1024,
    )  # fmt: skip
    memory_budget: int = _setting(
        0, "Bytes that loaded versions may take. Not set: 75 % of what host and cgroup leave.",
        low=MIB, is_size=True,
        instead="leave it out for 75 % of what host and cgroup leave, or give 1MiB or more",
    )  # fmt: skip
    memory_lock: str = _setting(
        "auto",
        "auto: lock loaded weights in RAM as far as the limit on locked memory allows; off: leave "
        "them to the page cache.",
        choices=("auto", "off"),
    )
    prefault_bytes_per_s: int = _setting(
        4096 * MIB,
        "Bytes a second that are read at most to bring weights into RAM. 0: no bound.",
        low=0, is_size=True,
    )  # fmt: skip
    residency_check_s: float = _setting(
        30.0, "Seconds between two looks for evicted weights, which are brought back. 0: never.",
        low=0,
    )  # fmt: skip
    max_body_bytes: int = _setting(
        64 * MIB, "Largest request body, before and after decompression.", low=1, is_size=True
    )
    max_header_bytes: int = _setting(
        16 * KIB, "Largest request head, all header lines together.", low=256, is_size=True
    )
    max_output_bytes: int = _setting(
        256 * MIB, "Largest answer of one run; a larger one is refused.", low=1, is_size=True
    )
    header_timeout_s: float = _setting(
        5.0, "Seconds a client may take for its request head.", low=0.1
    )
    body_timeout_s: float = _setting(30.0, "Seconds a client may take for its body.", low=0.1)
    write_timeout_s: float = _setting(10.0, "Seconds a client may stop reading.", low=0.1)
    keep_alive_s: float = _setting(75.0, "Seconds an idle connection is kept.", low=0.1)
    timeout_ms: int = _setting(
        10_000, "Deadline of a request that names none, in milliseconds.", low=1, high=3_600_000
    )
    queue_rows: int = _setting(
        4096, "Rows that may wait for one version in one worker; more are refused with 429.", low=1
    )
    queue_ms: int = _setting(
        1000,
        "Milliseconds of work that may wait for one version in one worker, by how fast its queue "
        "was worked off so far; more is refused with 429. 16 requests may wait in any case. "
        "0: only queue_rows bounds what waits.",
        low=0,
        high=3_600_000,
    )
    max_in_flight: int = _setting(
        1024, "Requests that one worker holds at once; more are refused with 429.", low=1
    )
    max_batch_rows: int = _setting(
        256, "Most rows of different requests that share one run. 1: never share.", low=1
    )
    max_queue_delay_ms: float = _setting(
        0.0,
        "Milliseconds a request may wait for others to share its run. 0: only what arrives "
        "together, or while a run is under way, shares one.",
        low=0, high=1000,
    )  # fmt: skip
    run_memory: int = _setting(
        0,
        "Bytes that runs in one worker may take beside what it holds; a run that needs more fails. "
        "0: its share of what memory_budget leaves of the machine, 1GiB at least.",
        low=0, is_size=True,
    )  # fmt: skip
    inline_ms: float = _setting(
        1.0,
        "A version whose row takes less runs on its worker's event loop, which saves the way to a "
        "thread and lets the other requests wait meanwhile. 0: every run is in a thread.",
        low=0, high=100,
    )  # fmt: skip
    busy_poll_us: int = _setting(
        200,
        "Microseconds that a worker may look for the next request before its core sleeps, which "
        "takes tens of microseconds off the answer to one that comes so soon. Only while requests "
        "do come so soon, and only where the workers' cores are their own: no more threads than "
        "cores, no CPU quota below them. 0: never.",
        low=0, high=10_000,
    )  # fmt: skip
    max_run_s: float = _setting(60.0, "Seconds one run may take before it is ended.", low=0.01)
    concurrent_loads: int = _setting(
        1, "Versions that may be checked, inspected and brought into RAM at once.", low=1, high=64
    )
    response_cache_bytes: int = _setting(
        0,
        "Bytes of outputs that each worker keeps, to answer equal requests without a run. 0: none.",
        low=0, is_size=True,
    )  # fmt: skip
    load_timeout_s: float = _setting(
        600.0, "Seconds a load may take in the workers before it counts as failed.", low=1
    )
    inspect_timeout_s: float = _setting(
        300.0, "Seconds the inspection of a version may take before it counts as failed.", low=1
    )
    inspect_memory: int = _setting(
        0, "Bytes of private memory that a version may take. 0: the free budget.",
        low=0, is_size=True,
    )  # fmt: skip
    shadow_queue: int = _setting(
        64,
        "Copies of requests that wait for shadows in one worker, of max_body_bytes together; more "
        "are dropped. 0: shadows compute nothing.",
        low=0, high=65536,
    )  # fmt: skip
    shadow_overlap_percent: float = _setting(
        1.0,
        "Requests in a hundred that may come while a worker computes a copy for a shadow. "
        "100: no limit, for machines with cores to spare.",
        low=0, high=100,
    )  # fmt: skip
    drain_timeout_s: float = _setting(
        30.0, "Seconds an unload waits for requests under way.", low=0
    )
    stop_timeout_s: float = _setting(30.0, "Seconds a stop waits for requests under way.", low=0)
    invocations_model: str = _setting(
        "",
        "Model that answers MLflow's /invocations, which names none. Empty: no model does.",
    )
    ready_requires: str = _setting(
        "workers", "What ready means: a worker serves, or no version FAILED either.",
        choices=("workers", "all"),
    )  # fmt: skip
    log_level: str = _setting(
        "info", "Least severity that is logged.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting(
        "json", "One JSON object a line, or text for people.", choices=("json", "text")
    )
    access_log: str = _setting(
        "off",
        "Log requests of the data plane: none, some of each second (access_log_per_s), or all.",
        choices=("off", "sampled", "all"),
    )
    access_log_per_s: int = _setting(
        10,
        "Lines a second of good answers, and as many of others, that access_log = sampled writes "
        "in each worker, for predictions and for all else; a line says how many it left out.",
        low=1, high=100_000,
    )  # fmt: skip
    data_auth: str = _setting(
        "off",
        "Who may use the data plane. off: everyone who reaches it; token: who sends a token with "
        "scope infer.",
        choices=("off", "token"),
    )
    metrics_auth: str = _setting(
        "token",
        "Who may read /metrics of the admin plane. token: who sends a token with scope read, where "
        "there are tokens; off: everyone who reaches it.",
        choices=("token", "off"),
    )
    tls_cert: str = _setting("", "PEM file of the certificate for both planes. Empty: no TLS.")
    tls_key: str = _setting("", "PEM file of the certificate's key.")
    tokens: tuple[Token, ...] = _setting(
        (), "Tokens of both planes, as [[tokens]] with name, sha256 and scopes.", toml_only=True
    )


def load_settings(
    config: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Settings:
    """Return the settings of all sources, or raise InvalidInput naming source, key and value.

    ``config``: a TOML file, or None for none. ``flags``: only those that were given.
    """
    values: dict[str, Any] = {}
    if config is not None:
        values |= _from_toml(config)
    values |= _from_environ(environ)
    values |= {key: _checked(key, value, f"--{key.replace('_', '-')}")
               for key, value in flags.items() if value is not None}  # fmt: skip
    settings = dataclasses.replace(Settings(), **values)
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise InvalidInput("tls_cert and tls_key go together: one of them is not set")
    return settings


def parse_size(text: str) -> int:
    """Return bytes from ``1073741824``, ``1024MiB`` or ``1GiB`` (KB, MB, GB are decimal)."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise InvalidInput(f"size {shown(text)} is not allowed: use bytes, or KiB MiB GiB TiB")
    unit = (match[2] or "B").upper()
    base: int = 1000 if unit in ("KB", "MB", "GB", "TB") else 1024
    power = 0 if unit == "B" else "KMGT".index(unit[0]) + 1
    size: int = int(match[1]) * base**power
    if size > MAX_SIZE:
        raise InvalidInput(f"size {shown(text)} is too large: at most {MAX_SIZE} bytes")
    return size


def _fields() -> dict[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(Settings)}


def _from_toml(path: Path) -> dict[str, object]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"config {path}: not TOML: {error}") from error
    return {key: _checked(key, value, f"{path.name}: {key}") for key, value in document.items()}


def _from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, text in environ.items():
        key = name.removeprefix(ENV_PREFIX)
        if key == name or key in ENV_OTHER:
            continue
        values[key.lower()] = _checked(key.lower(), text, name)
    return values


def _checked(key: str, value: object, where: str) -> object:
    known = _fields()
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"{where}: unknown setting {shown(key)}{hint}")
    spec = known[key]
    if spec.metadata["toml_only"]:
        return _tokens(value, where)
    if isinstance(spec.default, Path):
        if not isinstance(value, str | Path) or not str(value):
            raise InvalidInput(f"{where}: {shown(value)} must be a path")
        return Path(value)
    if isinstance(spec.default, str):
        return _text(spec, value, where)
    return _number(spec, value, where)


def _text(spec: dataclasses.Field[Any], value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{where}: {shown(value)} must be a string")
    if spec.default and not value:
        raise InvalidInput(f"{where}: must not be empty")
    choices = spec.metadata["choices"]
    if choices and value not in choices:
        raise InvalidInput(f"{where}: {shown(value)} is not one of {', '.join(choices)}")
    return value


def _number(spec: dataclasses.Field[Any], value: object, where: str) -> float:
    kind = int if isinstance(spec.default, int) else float
    try:
        if isinstance(value, str):
            number = parse_size(value) if spec.metadata["is_size"] else kind(value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(f"{shown(value)} must be a number")
        elif kind is int and not isinstance(value, int):
            raise InvalidInput(f"{shown(value)} must be a whole number")
        else:
            number = kind(value)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
    except (ValueError, OverflowError) as error:
        what = "whole number" if kind is int else "number"
        raise InvalidInput(f"{where}: {shown(value)} is not a {what}") from error
    low, high = spec.metadata["low"], spec.metadata["high"]
    if high is None:
        high = MAX_SIZE if kind is int else MAX_SECONDS
    # Written so that NaN, which compares false with everything, is refused as well.
    if low is not None and not number >= low:
        instead = spec.metadata["instead"]
        hint = f": {instead}" if instead else ""
        raise InvalidInput(f"{where}: {shown(value)} is too small: at least {low}{hint}")
    if not number <= high:
        raise InvalidInput(f"{where}: {shown(value)} is too large: at most {high}")
    return number


def _tokens(value: object, where: str) -> tuple[Token, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f"{where}: use [[tokens]] tables in the config file")
    tokens = []
    for index, item in enumerate(value):
        here = f"{where}[{index}]"
        if not isinstance(item, dict) or set(item) != {"name", "sha256", "scopes"}:
            raise InvalidInput(f"{here}: needs exactly name, sha256 and scopes")
        name, sha256, scopes = item["name"], item["sha256"], item["scopes"]
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"{here}.name: {shown(name)} must be a non-empty string")
        if not isinstance(sha256, str) or not _DIGEST_HEX.fullmatch(sha256):
            raise InvalidInput(f"{here}.sha256: must be 64 lower-case hex digits")
        if not isinstance(scopes, list) or not scopes or not set(scopes) <= set(SCOPES):
            raise InvalidInput(f"{here}.scopes: {shown(scopes)} must name some of {SCOPES}")
        tokens.append(Token(name, sha256, tuple(scopes)))
    return tuple(tokens)
