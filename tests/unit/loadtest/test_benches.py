"""The parts of the benches that decide: parsers, bodies, and what counts as a fault."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from loadtest.bench._installed import refused
from loadtest.bench.text import has_fast_numbers, least_cosine, texts
from loadtest.exchange import Exchange
from loadtest.lab.bodies import as_binary, as_json, pairs, table_rows, tokens
from loadtest.lab.generators import parse_wrk
from loadtest.lab.overload import answered_rate, recovery_s
from loadtest.lab.processes import LabFailed, stop
from loadtest.swap_under_load import Change, Phase, went_back


def exchange(sent: int, done: int, version: str = "1", status: int = 200) -> Exchange:
    return Exchange(sent, sent, done, status, watched=version)


def test_wrk_counts_what_is_no_answer_as_failed():
    """The rate is that of good answers; refused and broken requests are counted apart."""
    line = ('RESULT {"requests":1000,"us":2000000,"p50":500,"p99":9000,'
            '"status":100,"broken":3,"timeout":2}')  # fmt: skip
    found = parse_wrk(f"Running 2s test\n{line}\nRequests/sec: 500\n")
    assert (found["rate"], found["failed"]) == (450.0, 105)
    assert (found["p50_ms"], found["p99_ms"]) == (0.5, 9.0)
    with pytest.raises(LabFailed, match="unable to connect"):
        parse_wrk("unable to connect to 127.0.0.1:1")


def test_bodies_hold_the_same_values_in_both_forms(tmp_path):
    """Binary and JSON say the same rows, and rows come round where the table has fewer."""
    sample = tmp_path / "rows.csv"
    sample.write_text("a,b\n1,2\n3,4.5\n")
    rows = table_rows(sample, 3)
    assert json.loads(as_json(rows))["inputs"] == [
        {"name": "input", "shape": [3, 2], "datatype": "FP32", "data": [1, 2, 3, 4.5, 1, 2]}
    ]
    body, header = as_binary(rows)
    head_bytes = int(header.partition(":")[2])
    head = json.loads(body[:head_bytes])
    assert head["inputs"][0]["parameters"]["binary_data_size"] == 24
    assert struct.unpack("<6f", body[head_bytes:]) == (1, 2, 3, 4.5, 1, 2)


def test_made_up_inputs_stay_inside_their_tables():
    """Users, items and tokens are indices that exist."""
    users, items = pairs(1, 500)
    assert max(users.data) < 5000
    assert max(items.data) < 4096
    assert tokens(32)[0].shape == (1, 32)


def test_an_answer_may_come_from_either_side_of_a_change_under_way():
    """Only a version that was replaced before the request was sent is a step back."""
    changes = [Change("2", 100, 200), Change("1", 300, 400)]
    assert went_back([exchange(50, 90, "1"), exchange(50, 90, "2")], "1", changes) == 1
    assert went_back([exchange(150, 160, "1"), exchange(150, 160, "2")], "1", changes) == 0
    assert went_back([exchange(210, 220, "2"), exchange(210, 220, "1")], "1", changes) == 1
    assert went_back([exchange(90, 310, "1"), exchange(210, 310, "1")], "1", changes) == 0
    assert went_back([exchange(500, 510, "1"), exchange(500, 510, "2")], "1", changes) == 1


def test_a_phase_counts_requests_by_when_they_were_meant_to_start():
    """A request that began before and ended inside belongs to the time before."""
    phase = Phase("load", 100, 200)
    samples = [exchange(99, 150), exchange(100, 500), exchange(199, 201), exchange(200, 210)]
    assert len(phase.latencies(samples)) == 2


def test_recovery_ends_with_the_last_probe_that_was_not_as_before():
    """A slow or refused probe after the overload counts until it is over."""
    second = 10**9
    before = [exchange(0, 10_000_000)]
    slow = exchange(3 * second, 3 * second + 30_000_000)
    refused_one = exchange(4 * second, 4 * second + 1, status=429)
    good = exchange(5 * second, 5 * second + 15_000_000)
    assert recovery_s([*before, good], second, 2 * second) == 0.0
    assert recovery_s([*before, slow, good], second, 2 * second) == 1.0
    assert recovery_s([*before, slow, refused_one, good], second, 2 * second) == 2.0
    with pytest.raises(LabFailed, match="no probe"):
        recovery_s([good], second, 2 * second)


def test_what_is_answered_after_the_last_request_was_sent_is_no_rate():
    """A backlog that is worked off later says nothing of the time of the overload."""
    second = 10**9
    samples = [exchange(0, second), exchange(second, 3 * second), exchange(2 * second, 2 * second)]
    assert answered_rate([*samples, exchange(0, 1, status=429)]) == 1.0


def test_gigabytes_for_a_gpu_are_not_installed():
    """pip's report is read before anything is downloaded."""
    report = json.dumps({
        "install": [{"metadata": {"name": name}} for name in
                    ("numpy", "torch", "nvidia-cublas-cu12", "nvidia-ml-py")]
    })  # fmt: skip
    assert refused(report) == ["torch", "nvidia-cublas-cu12"]


@pytest.mark.slow
def test_what_a_server_leaves_behind_is_ended_too():
    """A worker that outlives its server would take CPU from whatever is measured next."""
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
        stop(process)
        # Its end of the pipe is closed with the last process that holds it.
        assert process.stdout.read() == b""
    assert process.returncode is not None
    assert child != process.pid


@pytest.mark.parametrize(("flags", "expected"), [("avx2 avx512_bf16 fma", True), ("avx2", False)])
def test_the_bench_of_texts_asks_for_more_where_the_processor_can(tmp_path, flags, expected):
    """Told by the flags that the kernel lists; a machine that lists none has none."""
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : fpu {flags}\n")
    assert has_fast_numbers(tmp_path / "cpuinfo") is expected
    assert has_fast_numbers(tmp_path / "nothing") is False


def test_texts_of_the_bench_have_the_tokens_that_it_names():
    """Different texts, the same each time, and a cosine that sees one row that is off."""
    rows = texts(3, 32)
    assert rows == texts(3, 32)
    assert len(set(rows)) == 3
    assert {len(row.split()) for row in rows} == {30}
    assert least_cosine([[1, 0], [1, 1]], [[2, 0], [0, 1]]) == pytest.approx(0.5**0.5)
