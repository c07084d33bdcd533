"""``top``: rates come from two looks, and the table fits a narrow terminal with every number."""

from __future__ import annotations

from rich.console import Console

from serving.cli.top_reading import Reading, compared, parse
from serving.cli.top_view import COLUMNS, cells, plain, screen
from serving.metrics.layout import DURATION_BOUNDS_S
from tests.unit.serving.cli.conftest import version_document

BUCKETS = (*(f"{bound}" for bound in DURATION_BOUNDS_S), "+Inf")


def page(answered: int, refused: int, under_1ms: int, cpu_s: float) -> str:
    """A metrics page of one version, whose slow answers took between 15 and 20 ms."""
    label = 'model="m",version="1"'
    lines = ["# TYPE ramrack_requests_total counter",
             f'ramrack_requests_total{{code="200",{label}}} {answered}',
             f'ramrack_requests_total{{code="429",{label}}} {refused}',
             'ramrack_requests_total{code="404",model="_unknown",version="_unknown"} 7',
             "# TYPE ramrack_request_duration_seconds histogram"]  # fmt: skip
    for le in BUCKETS:
        fast = under_1ms if float(le) >= 0.001 else 0
        slow = answered - under_1ms if float(le) >= 0.02 else 0
        lines.append(f'ramrack_request_duration_seconds_bucket{{le="{le}",{label}}} {fast + slow}')
    lines += ["# TYPE ramrack_worker_cpu_seconds_total counter",
              f'ramrack_worker_cpu_seconds_total{{slot="0"}} {cpu_s}']  # fmt: skip
    return "\n".join(lines) + "\n"


def reading(at_s: float, text: str) -> Reading:
    counts, cpu_s = parse(text)
    version = version_document("m", 1, "READY") | {"traffic": 100, "aliases": ["champion"]}
    workers = [
        {"slot": 0, "pid": 7, "state": "serving"},
        {"slot": 1, "pid": 8, "state": "starting"},
    ]
    memory = {"committed_bytes": 1, "budget_bytes": 2048, "free_bytes": 2047}
    return Reading(at_s, [version], workers, memory, counts, cpu_s)


def test_two_looks_make_rates_percentiles_and_cpu():
    """A hundred answers in two seconds are fifty a second; what was before does not count."""
    before = reading(10.0, page(1000, 5, 0, 3.0))
    after = reading(12.0, page(1100, 9, 90, 4.0))
    seen = compared(before, after)
    (version,) = seen["versions"]
    assert version["requests_per_s"] == 52.0
    assert (version["refused_per_s"], version["failed_per_s"]) == (2.0, 0.0)
    assert 0.5 <= version["p50_ms"] <= 1.0
    assert 15.0 <= version["p99_ms"] <= 20.0
    assert [worker["cpu"] for worker in seen["workers"]] == [0.5, None]


def test_an_idle_version_has_no_latency_and_a_first_look_no_rate():
    """Nothing is made up where nothing was counted."""
    same = reading(1.0, page(10, 0, 10, 1.0))
    (version,) = compared(same, same)["versions"]
    assert (version["requests_per_s"], version["p50_ms"], version["p99_ms"]) == (0.0, None, None)


def busy() -> dict:
    seen = compared(reading(0.0, page(0, 0, 0, 0.0)), reading(1.0, page(99999, 4321, 5, 1.0)))
    seen["versions"][0] |= {
        "model": "a-model-with-a-name-of-sixty-four-characters", "version": 1234,
        "aliases": ["champion", "candidate"], "state": "DRAINING", "shared_bytes": 2**40 - 1,
        "private_bytes_per_worker": 2**30 - 1, "p50_ms": 1234.567, "p99_ms": 4999.9,
    }  # fmt: skip
    return seen


def test_eighty_columns_cut_names_and_no_number():
    """The widest row there may be: every number is whole, and no line is folded."""
    seen = busy()
    console = Console(width=80, height=20, highlight=False, record=True)
    with console.capture() as captured:
        console.print(screen(seen, "http://127.0.0.1:8081", console))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    row = lines[2]
    for number in ("1234", "DRAINING", "100 %", "1024.0G", "1024.0M", "104k", "1235", "5000"):
        assert number in row, row
    assert len(lines) == 5


def test_text_for_a_pipe_is_never_cut():
    """All of a name, and the lines about workers and memory."""
    lines = plain(busy()).splitlines()
    assert lines[0].split()[: len(COLUMNS)][0] == "model"
    assert "a-model-with-a-name-of-sixty-four-characters" in lines[1]
    assert lines[-2] == "workers  0: serving 100% CPU, 1: starting"
    assert lines[-1].startswith("memory   1 B committed of 2.0 KiB")


def test_rows_that_do_not_fit_give_way_to_busier_ones():
    """The busiest versions stay on a small screen, and how many are left out is said."""
    seen = busy()
    quiet = [seen["versions"][0] | {"model": f"quiet{n}", "requests_per_s": n} for n in range(20)]
    seen["versions"] = [*quiet, seen["versions"][0]]
    console = Console(width=120, height=10)
    with console.capture() as captured:
        console.print(screen(seen, "here", console, "no answer"))
    text = captured.get()
    assert len(text.splitlines()) <= 10
    assert "a-model-with" in text
    assert "quiet0 " not in text
    assert "17 more" in text
    assert "no answer" in text


def test_names_cannot_steer_the_terminal():
    """An escape sequence in a name is shown as a space."""
    version = busy()["versions"][0] | {"model": "a\x1b[2Jb"}
    assert cells(version)[0] == "a [2Jb"
