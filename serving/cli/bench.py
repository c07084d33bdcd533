"""``ramrack bench``: requests at a fixed rate against a running server, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from serving.cli.load_run import Load, check_installed, problem_of, run_load
from serving.cli.made_requests import request_of
from serving.cli.options import DATA_URL_DEFAULT, AsJson, DataUrl, Form, Name, Rows, data_token
from serving.cli.output import count_text, note, print_json, print_table, working
from serving.cli.predict import input_file
from serving.cli.values import one_of, real, selector, whole

_MOST_RATE: Final = 1_000_000
_BAR: Final = 40
_QUANTILES: Final = {"p50": "p50_ms", "p90": "p90_ms", "p99": "p99_ms", "p99.9": "p999_ms",
                     "max": "max_ms", "mean": "mean_ms"}  # fmt: skip


def bench(
    name: Name,
    *,
    rate: Annotated[
        float,
        typer.Option("--rate", metavar="N", help="Requests a second, whether answered or not.",
                     parser=real(0.01, _MOST_RATE)),
    ] = 100.0,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", help="How long to send.", parser=real(0.1, 86_400)),
    ] = 10.0,
    connections: Annotated[
        int,
        typer.Option("--connections", metavar="N", help="Opened before the first request; more "
                     "are opened while all are busy.", parser=whole(1, 1024)),
    ] = 16,
    input_path: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", metavar="FILE", parser=input_file,
            help="What to send: JSON (a V1 or V2 body, or rows), CSV or Parquet; without it "
            "requests are made up from the model's signature.",
        ),
    ] = None,
    form: Form = "v2",
    rows: Rows = 1,
    arrivals: Annotated[
        str,
        typer.Option("--arrivals", metavar="HOW", parser=one_of("poisson", "constant"),
                     help="poisson: as independent users come; constant: evenly."),
    ] = "poisson",
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="VERSION", parser=selector,
                     help="Number or alias; without it the route decides."),
    ] = None,
    hgrm: Annotated[
        Path | None, typer.Option("--hgrm", metavar="FILE",
                                  help="Write the distribution for HdrHistogram's plotters."),
    ] = None,
    hlog: Annotated[
        Path | None, typer.Option("--hlog", metavar="FILE",
                                  help="Write the histogram as an HdrHistogram log."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE",
                                  help="Write a page with drawings of the run."),
    ] = None,
    as_json: AsJson = False,
    url: DataUrl = DATA_URL_DEFAULT,
) -> int:  # fmt: skip
    """Send requests at a fixed rate and show how long the answers took."""
    check_installed()
    token = data_token()
    request = request_of(
        url, token, name, version=version or "", form=form, rows=rows, source=input_path
    )
    files = {"--hgrm": hgrm, "--hlog": hlog, "--html": page}
    load = Load(
        url.rstrip("/") + request.path, request.body, request.headers, rate, seconds,
        connections, arrivals,
        files=tuple(part for flag, path in files.items() if path for part in (flag, str(path))),
    )  # fmt: skip
    with working(f"{name}: {rate:g} requests a second for {seconds:g} s"):
        report, is_stopped = run_load(load, token)
    if as_json:
        print_json({"model": name, "form": request.form, **report})
    else:
        _print(name, request.form, report)
    problem = problem_of(report) or ("stopped by Ctrl-C" if is_stopped else "")
    if problem:
        note(f"ramrack: {problem}")
    return 1 if problem else 0


def _print(name: str, form: str, report: Mapping[str, Any]) -> None:
    print_table(("latency", "ms"), [(label, report[key]) for label, key in _QUANTILES.items()])
    if report["histogram"]:
        print()
        print_table(("up to ms", "answers", ""), list(histogram_rows(report["histogram"])))
    note(
        f"{name} ({form}): {count_text(report['sent'], 'request')} in {report['seconds']:.1f} s, "
        f"{report['failed']} failed; {report['intended_rate']:g} a second were asked for, "
        f"{report['achieved_rate']:g} sent, {report['answered_rate']:g} answered; this program "
        f"took {report['client_cpu']:.0%} of a core"
    )


def histogram_rows(histogram: list[Mapping[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Yield the end of each bucket, its count and a bar; the longest bar is of the fullest one."""
    most = max(bucket["count"] for bucket in histogram)
    for bucket in histogram:
        width = -(-bucket["count"] * _BAR // most)
        yield bucket["to_ms"], bucket["count"], "#" * width
