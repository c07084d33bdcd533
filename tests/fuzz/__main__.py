"""``python -m tests.fuzz``: fuzzes for minutes; ``scripts/bench fuzz`` starts it.

With atheris it is guided by coverage. Without it seeds are changed at random, and says so.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.mutate import mutations

NAMES = ("infer", "predict", "manifest", "frames", "compressed", "paths", "connection", "graph")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def guided(name: str, seconds: float, folder: Path) -> int:
    """Fuzz in this process until the time is over; atheris prints executions and coverage."""
    import atheris

    with atheris.instrument_imports(include=["registry", "models", "serving"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-max_total_time={int(seconds)}", "-max_len=4096",
         f"-artifact_prefix={folder}/found-{name}-", "-print_final_stats=1", "-timeout=60",
         "-rss_limit_mb=3000", "-verbosity=1"],
        target.run,
    )  # fmt: skip
    atheris.Fuzz()
    return 0


def unguided(name: str, seconds: float, seed: int) -> int:
    """Change seeds at random until the time is over; return 1 with the first find."""
    from tests.fuzz.targets import TARGETS

    target, end, done = TARGETS[name], time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for data in mutations(target.seeds, seed + done, 1000):
            try:
                target.run(data)
            except Exception as error:  # noqa: BLE001 - every kind is a find
                _say(f"{name}: {type(error).__name__}: {error}\nfound by {data!r}")
                return 1
            done += 1
            if time.monotonic() > end:
                break
    _say(f"{name}: {done} executions, not guided by coverage: atheris is not installed")
    return 0


def main(arguments: list[str]) -> int:
    """Fuzz one target here, or all of them one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=NAMES, action="append")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--folder", type=Path, default=Path(".ramrack/fuzz"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = options.target or list(NAMES)
    if options.here:
        seconds = 60 * options.minutes
        if find_spec("atheris") is None:
            return unguided(names[0], seconds, options.seed)
        return guided(names[0], seconds, options.folder)
    code = 0
    for name in names:
        _say(f"== {name}")
        command = [sys.executable, "-m", "tests.fuzz", "--here", "--target", name,
                   "--minutes", str(options.minutes), "--folder", str(options.folder)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).splitlines()
        words = ("stat::", "DONE", "executions", "Error", "found", "==", "cov:")
        shown = [line for line in said if any(word in line for word in words)]
        _say("\n".join(shown[-14:] if done.returncode == 0 else said[-60:]))
        code = code or done.returncode
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
