"""Every command against a server: what it sends, what it prints, how it ends."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from serving.machine import Machine
from serving.metrics.layout import DURATION_BOUNDS_S
from tests.unit.serving.cli.conftest import FakeServer


def test_ls_without_models_says_what_to_do(ramrack):
    """An empty server is no error, and the next step is named."""
    assert ramrack("ls") == (0, "", "no models yet: ramrack push NAME FILE brings the first\n")


def test_ls_lists_every_version(ramrack, server: FakeServer):
    """One line a version; with --json what the server said."""
    server.add_version("fraud", "READY")
    server.add_version("fraud")
    code, out, _ = ramrack("ls")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["model", "version", "state"], ["fraud", "1", "READY"], ["fraud", "2", "UNLOADED"],
    ]  # fmt: skip
    assert "2.0 KiB" in out
    code, out, _ = ramrack("ls", "fraud", "--json")
    assert [v["version"] for v in json.loads(out)["models"][0]["versions"]] == [1, 2]


def test_a_name_from_elsewhere_cannot_steer_the_terminal(ramrack, server: FakeServer):
    """Control characters in what the server says are not printed."""
    server.add_version("m")["reason"] = "bad\x1b[2Jthing [red]x"
    _, out, _ = ramrack("ls")
    assert "\x1b" not in out
    assert "[red]x" in out


def metrics(good: int, refused: int) -> str:
    """A page of counters of fraud/1, each answer of which took between 15 and 20 ms."""
    label = 'model="fraud",version="1"'
    lines = [f'ramrack_requests_total{{code="200",{label}}} {good}',
             f'ramrack_requests_total{{code="429",{label}}} {refused}']  # fmt: skip
    lines += [
        f'ramrack_request_duration_seconds_bucket{{le="{bound}",{label}}} '
        f"{good if bound >= 0.02 else 0}"
        for bound in (*DURATION_BOUNDS_S, float("inf"))
    ]
    counter = "# TYPE ramrack_requests_total counter"
    histogram = "# TYPE ramrack_request_duration_seconds histogram"
    return "\n".join([counter, *lines[:2], histogram, *lines[2:], ""])


def test_ps_shows_what_is_loaded_with_its_requests_and_rates(
    ramrack, server: FakeServer, monkeypatch
):
    """Only loaded versions: counts, rates and latencies between two looks, memory in all."""
    server.add_version("fraud", "READY")
    server.add_version("fraud")
    server.add_version("fraud", "FAILED")["reason"] = "no such operator"
    server.answers["GET", "/metrics"] = [(200, metrics(41, 2)), (200, metrics(81, 12))]
    clock = iter((100.0, 102.0))
    now = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("serving.cli.top_reading.time", now)
    waits: list[float] = []
    monkeypatch.setattr("serving.cli.ps.time", SimpleNamespace(sleep=waits.append))
    code, out, err = ramrack("ps", "--seconds", "2", "--json")
    assert (code, waits) == (0, [2.0]), err
    seen = json.loads(out)
    good, failed = seen["versions"]
    assert good["requests"] == {"succeeded": 81, "failed": 12}
    assert (good["requests_per_s"], good["refused_per_s"], good["failed_per_s"]) == (25.0, 5.0, 0.0)
    assert 15 <= good["p50_ms"] <= good["p99_ms"] <= 20
    assert (failed["requests_per_s"], failed["p50_ms"]) == (0.0, None)
    assert seen["seconds"] == 2.0

    clock = iter((100.0,))
    code, out, err = ramrack("ps", "--seconds", "0")
    head, first, second = (line.split() for line in out.splitlines())
    assert head[5:12] == ["req/s", "p50", "ms", "p99", "ms", "err/s", "requests"]
    assert first[:11] == ["fraud", "1", "READY", "-", "-", "-", "-", "-", "-", "81", "12"]
    assert second[-3:] == ["no", "such", "operator"]
    assert err == ("memory: 1.0 KiB committed of 4.0 KiB, 3.0 KiB free; workers: 1 of 1 serve\n")


@pytest.mark.parametrize(("columns", "is_whole"), [(80, False), (300, True)])
def test_ps_fits_the_terminal(ramrack, server: FakeServer, monkeypatch, columns, is_whole):
    """Eighty columns have what top has, and what is wrong below; no line is folded."""
    version = server.add_version("fraud-detection-with-a-long-name", "READY")
    version["aliases"] = ["champion", "candidate"]
    server.add_version("fraud-detection-with-a-long-name", "FAILED")["reason"] = "x" * 20
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, err = ramrack("ps", "--seconds", "0")
    assert code == 0, err
    out = re.sub(r"\x1b\[\d+m", "", out)
    assert len(out.splitlines()) == 3
    assert max(map(len, out.splitlines())) <= columns
    assert ("locked" in out, "champion, candidate" in out) == (is_whole, is_whole)
    said = f"fraud-detection-with-a-long-name/2 is FAILED: {'x' * 20}"
    assert (said in err, "x" * 20 in out) == (not is_whole, is_whole)


@pytest.mark.parametrize(("columns", "is_whole"), [(80, False), (300, True)])
def test_ls_fits_the_terminal(ramrack, server: FakeServer, monkeypatch, columns, is_whole):
    """In eighty columns times end at the minute and reasons stand below, what is wrong alone."""
    server.add_version("fraud-detection", "READY")["reason"] = "loaded and warmed up"
    server.add_version("fraud-detection", "FAILED")["reason"] = "x" * 20
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, err = ramrack("ls")
    assert code == 0, err
    out = re.sub(r"\x1b\[\d+m", "", out)
    assert len(out.splitlines()) == 3
    assert max(map(len, out.splitlines())) <= columns
    assert ("warmed up" in out, "x" * 20 in out) == (is_whole, is_whole)
    said = f"fraud-detection/2 is FAILED: {'x' * 20}\n"
    assert err == ("" if is_whole else said)


@pytest.mark.parametrize("columns", [80, 400])
def test_ps_says_how_weights_are_held_and_with_whom(
    ramrack, server: FakeServer, monkeypatch, columns
):
    """What a READY version shares, what is its own, and why its weights are held as they are."""
    version = server.add_version("enc", "READY")
    version["weights"] = {"mode": "packed", "reason": "it pays"}
    version["memory"] |= {
        "unique_bytes": 3 << 20, "shared_bytes": 5 << 20,
        "shared_with": [{"model": "enc", "version": 2}, {"model": "other", "version": 1}],
    }  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    code, out, err = ramrack("ps", "--seconds", "0")

    assert code == 0, err
    if columns == 80:
        line = "enc/1 is packed: it pays; shares 5.0 MiB with enc/2, other/1, 3.0 MiB are its own"
        assert err.splitlines()[0] == line
    else:
        (row,) = [line for line in out.splitlines() if "enc" in line and "READY" in line]
        assert re.search(r"packed +3\.0 MiB +5\.0 MiB +enc/2, other/1 ", row)
        assert "it pays" in row


def test_alias_is_set_deleted_and_shown(ramrack, server: FakeServer):
    """All three uses of alias, each with its sentence."""
    server.add_version("m", "READY")
    assert ramrack("alias", "m", "prod", "1")[:2] == (0, "m: alias prod names version 1\n")
    assert ramrack("alias", "m", "prod", "--delete")[:2] == (0, "m: alias prod is gone\n")
    assert ramrack("alias", "m") == (0, "", "m has no aliases\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("alias", "m", "latest", "1"), ("alias", "m", "Prod", "1"), ("alias", "m", "prod"),
        ("alias", "m", "prod", "1", "--delete"), ("alias", "m", "--delete"),
        ("route", "m", "1", "--latest"), ("load", "m", "01"), ("load", "m", "latest"),
        ("load", "../m", "1"), ("load", "stats", "1"), ("push", "m", "no-such-file"),
        ("predict", "m"), ("events", "--limit", "0"), ("snippet", "m", "--lang", "cobol"),
        ("serve", "--port", "70000"), ("serve", "--memory-budget", "lots"), ("nonsense",), (),
        ("verify", "--store", "no-such-dir"), ("gc", "--force"),
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_two_and_sends_nothing(ramrack, server: FakeServer, arguments):
    """What cannot be meant is refused here, with the reason on stderr."""
    code, out, err = ramrack(*arguments)
    assert (code, out) == (2, "")
    assert "ramrack: " in err
    assert server.calls == []


def test_route_is_shown_and_moved(ramrack, server: FakeServer):
    """Moving the route sends one version with all the weight, or the wish to follow latest."""
    server.add_version("m", "READY")
    code, out, _ = ramrack("route", "m", "1")
    assert (code, out) == (0, "m: version 1 gets 100 %; before that version 1 gets 100 %\n")
    ramrack("route", "m", "--latest")
    bodies = [json.loads(call[3]) for call in server.calls if call[0] == "PUT"]
    whole = {"split": [{"version": 1, "weight": 100}], "shadow": []}
    assert bodies == [whole, {"latest": True}]
    server.answers["GET", "/admin/v1/models/m/route/history"] = [
        (200, {"history": [{"seq": 1, "time": "t", "who": "me", "reason": "first",
                            "split": [{"version": 1, "weight": 100}], "latest": False}]})
    ]  # fmt: skip
    assert "first" in ramrack("route", "m", "--history")[1]


def test_rollback_may_name_its_goal(ramrack, server: FakeServer):
    """Rollback goes to the one before, or to --to."""
    answer = {"model": "m", "split": [{"version": 1, "weight": 100}], "latest": False}
    server.answers["POST", "/admin/v1/models/m/route:rollback"] = [(200, answer)]
    assert ramrack("rollback", "m")[:2] == (0, "m: version 1 gets 100 %\n")
    ramrack("rollback", "m", "--to", "3")
    assert [json.loads(call[3]) for call in server.calls] == [{}, {"to": 3}]


def test_rm_gc_and_events(ramrack, server: FakeServer):
    """The housekeeping commands print what was done."""
    server.answers["DELETE", "/admin/v1/models/m/versions/1"] = [(200, {"model": "m"})]
    server.answers["POST", "/admin/v1/gc"] = [(200, {"objects": 2, "bytes": 4096})]
    assert "m/1 is deleted" in ramrack("rm", "m", "1")[1]
    assert ramrack("gc")[1] == "dropped 2 objects, 4.0 KiB\n"
    event = {"seq": 5, "time": "t", "kind": "route", "model": "m", "version": 2, "who": "me",
             "address": "a", "reason": "why",
             "before": {"aliases": {"stable": 1}}, "after": {"aliases": {"stable": 2}}}  # fmt: skip
    server.answers["GET", "/admin/v1/events"] = [(200, {"events": [event], "next": 5})]
    out = ramrack("events", "--model", "m", "--since", "4")[1]
    assert "alias stable 1 -> 2" in " ".join(out.split())
    assert server.calls[-1][2] == {"model": ["m"], "since": ["4"], "limit": ["50"]}
    server.answers["GET", "/admin/v1/events"] = [(200, {"events": [event], "next": 5})]
    ramrack("events")
    assert server.calls[-1][2] == {"newest": ["1"], "limit": ["50"]}


def test_verify_ends_with_one_where_something_is_damaged(ramrack, server: FakeServer):
    """Damage is named on stderr and in the exit code."""
    answer = {"objects": 3, "bytes": 10, "damaged": []}
    server.answers["POST", "/admin/v1/verify"] = [(200, answer)]
    assert ramrack("verify") == (0, "checked 3 objects, 10 B\n", "")
    damaged = answer | {"damaged": [{"digest": "sha256:1", "reason": "truncated"}]}
    server.answers["POST", "/admin/v1/verify"] = [(200, damaged)]
    code, _, err = ramrack("verify")
    assert (code, err) == (1, "damaged: sha256:1: truncated\n")


def test_a_token_of_the_environment_is_sent(ramrack, server: FakeServer, monkeypatch):
    """The admin token is taken from its variable, never from a flag."""
    monkeypatch.setenv("RAMRACK_ADMIN_TOKEN", "secret")
    ramrack("ls")
    assert server.headers[0]["authorization"] == "Bearer secret"


def test_nobody_there_is_one_line_of_advice(ramrack, server: FakeServer):
    """Without a server every command says how to start one."""
    code, out, err = ramrack("ls", "--admin-url", "http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err == (
        "ramrack: no server at http://127.0.0.1:1: start one with `ramrack serve`, or give the "
        "address of the admin plane with --admin-url or RAMRACK_ADMIN_URL\n"
    )


def test_doctor_looks_at_the_machine(ramrack):
    """Doctor names cores, memory, limits and disk, and ends with 0 where a server could run."""
    code, out, _ = ramrack("doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(out)["findings"]}
    assert code == 0
    assert {"cores", "threads", "memory", "memory lock limit", "page cache", "server",
            "open files", "onnxruntime"} <= set(findings)  # fmt: skip
    assert findings["server"]["value"].startswith("1 worker at")


@pytest.mark.parametrize(
    ("quota_cores", "setting", "said"),
    [
        (None, "200", "pinned to processors 0, 1, busy polling up to 200 us"),
        (None, "0", "pinned to processors 0, 1, no busy polling"),
        (1.0, "200", "not pinned, no busy polling"),
    ],
)
def test_doctor_says_whether_workers_poll(ramrack, monkeypatch, quota_cores, setting, said):
    """They do where their cores are their own and the settings let them."""
    machine = Machine(((0,), (1,)), quota_cores, 2**34, None, 2**33)
    monkeypatch.setattr("serving.cli.doctor.read_machine", lambda: machine)
    monkeypatch.setenv("RAMRACK_BUSY_POLL_US", setting)
    _, out, _ = ramrack("doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(out)["findings"]}
    assert findings["threads"]["value"].endswith(said)


def test_doctor_sends_a_reason_for_a_store_that_cannot_be_written(ramrack, monkeypatch):
    """A folder without write access is a fault: exit 1 and what to do."""
    monkeypatch.setattr("serving.cli.doctor.os.access", lambda *_: False)
    code, out, _ = ramrack("doctor")
    assert code == 1
    assert "choose another --store" in out


def test_snippets_name_the_models_inputs(ramrack, server: FakeServer):
    """Each language gives a request with the input's name, shape and datatype."""
    server.answers["GET", "/v2/models/m"] = [
        (200, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]})
    ]
    for language in ("curl", "python", "java"):
        code, out, _ = ramrack("snippet", "m", "--lang", language)
        assert code == 0
        assert "/v2/models/m/infer" in out
        assert "FP32" in out
    code, out, _ = ramrack("snippet", "m")
    body = json.loads(out.split(" -d '", 1)[1].rstrip("'\n"))
    assert body["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 0.5]}
    ]
