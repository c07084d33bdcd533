"""``python -m tests.fuzz``: fuzzes for minutes; ``scripts/bench fuzz`` starts it.

With atheris it is guided by coverage. Without it seeds are changed at random, and says so. Minutes
are of processor time, so that they are as much work on a busy machine as on a quiet one; those of
the OpenAPI documents, where a server works as well, are by the clock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.mutate import mutations

OPENAPI = {"openapi-data": "data", "openapi-admin": "admin"}
NAMES = (
    "infer", "next", "predict", "manifest", "frames", "compressed", "paths", "connection", "graph",
    *OPENAPI,
)  # fmt: skip
# So much for 4 KiB is a find: the largest body that is allowed would take hours.
MAX_RUN_S = 5.0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def guided(name: str, seconds: float, folder: Path) -> int:
    """Fuzz in this process until it took its processor time; atheris prints what came of it."""
    import atheris

    with atheris.instrument_imports(include=["registry", "models", "serving"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    is_over = False

    def run(data: bytes) -> None:
        nonlocal is_over
        began = time.process_time()
        target.run(data)
        now = time.process_time()
        if now - began > MAX_RUN_S:
            raise AssertionError(f"{now - began:.1f} s of processor time for {len(data)} bytes")
        if now > seconds and not is_over:
            is_over = True
            os.kill(os.getpid(), signal.SIGUSR1)  # libFuzzer's own way to be asked to end

    atheris.Setup(
        [sys.argv[0], str(corpus), "-max_len=4096", f"-artifact_prefix={folder}/found-{name}-",
         "-print_final_stats=1", "-timeout=120", "-report_slow_units=120", "-rss_limit_mb=3000",
         "-verbosity=1"],
        run,
    )  # fmt: skip
    atheris.Fuzz()
    return 0


def unguided(name: str, seconds: float, seed: int) -> int:
    """Change seeds at random until the time is over; return 1 with the first find."""
    from tests.fuzz.targets import TARGETS

    target, done = TARGETS[name], 0
    while time.process_time() < seconds:
        for data in mutations(target.seeds, seed + done, 1000):
            try:
                target.run(data)
            except Exception as error:  # noqa: BLE001 - every kind is a find
                _say(f"{name}: {type(error).__name__}: {error}\nfound by {data!r}")
                return 1
            done += 1
            if time.process_time() > seconds:
                break
    _say(f"{name}: {done} executions, not guided by coverage: atheris is not installed")
    return 0


def summary(name: str, said: str, cpu_s: float, wall_s: float, kept: Path) -> str:
    """Return one line of what libFuzzer said: executions, edges and features it reached.

    ``kept``: the file of what all runs on the same corpus did; this one is added to it.
    """
    done = re.findall(r"number_of_executed_units: (\d+)", said)
    reached = re.findall(r"cov: (\d+) ft: (\d+)", said)
    edges, features = reached[-1] if reached else ("?", "?")
    executions = int(done[-1]) if done else 0
    before = json.loads(kept.read_text()) if kept.exists() else {"executions": 0, "cpu_s": 0.0}
    total = {"executions": before["executions"] + executions, "cpu_s": before["cpu_s"] + cpu_s}
    kept.write_text(json.dumps(total))
    return (
        f"{name}: {executions} executions, {edges} edges, {features} features, "
        f"{cpu_s / 60:.1f} minutes of processor time in {wall_s / 60:.1f}; with this corpus "
        f"{total['executions']} executions in {total['cpu_s'] / 60:.1f} minutes so far"
    )


def _fuzz_one(name: str, minutes: float, folder: Path, seed: int) -> int:
    """Fuzz one target in a process of its own; say what came of it and return its exit code."""
    command = [sys.executable, "-m", "tests.fuzz", "--here", "--target", name, "--minutes",
               str(minutes), "--folder", str(folder), "--seed", str(seed)]  # fmt: skip
    began, before = time.monotonic(), os.times()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s, after = time.monotonic() - began, os.times()
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    said = done.stdout + done.stderr
    if done.returncode:
        _say(said[-20_000:])
    elif "number_of_executed_units" in said:
        _say(summary(name, said, cpu_s, wall_s, folder / f"{name}.json"))
    else:
        _say(said.strip())
    return done.returncode


def main(arguments: list[str]) -> int:
    """Fuzz one target here, or all of them one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=NAMES, action="append")
    parser.add_argument(
        "--minutes",
        type=float,
        default=1.0,
        help="for each target: of processor time, or by the clock for openapi-*",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(".ramrack/fuzz"),
        help="where each target's corpus is kept, so that minutes add up, and what was found",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = options.target or list(NAMES)
    if options.here:
        if names[0] in OPENAPI:
            from tests.fuzz.openapi import fuzz

            return fuzz(OPENAPI[names[0]], options.minutes, options.seed)
        seconds = 60 * options.minutes
        if find_spec("atheris") is None:
            return unguided(names[0], seconds, options.seed)
        return guided(names[0], seconds, options.folder)
    code = 0
    for name in names:
        _say(f"== {name}")
        code = _fuzz_one(name, options.minutes, options.folder, options.seed) or code
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
