"""What the fault bench decides: whose an answer is, what explains a failure, what is a leak."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from loadtest.bench.faults import FAULTS
from loadtest.faults.blackout import Blackout
from loadtest.faults.echo import Answer, Question, Sample
from loadtest.faults.footprint import ROUGH, STRICT, Footprint, footprint, quiet_footprint
from loadtest.faults.outcome import BROKEN, HEADER, HELD, NOT_JUDGED, Outcome, table
from loadtest.faults.server import ended_of
from loadtest.faults.steady import CLOSED, REFUSED, TIMED_OUT
from loadtest.faults.worker_deaths import Death, connections_of

SECOND = 10**9


def answer(row, mark, version="2"):
    outputs = [{"name": "y", "data": list(row)}, {"name": "version", "data": [mark]}]
    return Answer(200, version, False, json.dumps({"outputs": outputs}).encode())


def test_an_answer_is_own_by_its_row_and_its_version():
    """Another row, another version's mark, or no tensors at all make it a stranger's."""
    question, other = (Question.new("/v2/models/echo/infer") for _ in range(2))
    assert question.row != other.row
    assert question.is_answered_by(answer(question.row, 2.0))
    assert not question.is_answered_by(answer(other.row, 2.0))
    assert not question.is_answered_by(answer(question.row, 1.0))
    assert not question.is_answered_by(answer(question.row, 2.0, version=""))
    assert not question.is_answered_by(Answer(200, "2", False, b"{}"))


def test_who_ended_is_asked_until_the_kernel_has_taken_them_apart():
    """As many as were killed, also one that lives on for a moment; no other is waited for."""
    dying, living = (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)
    )
    late = threading.Timer(0.1, dying.stdin.close)
    late.start()
    try:
        assert ended_of([dying.pid, living.pid], 1, 60) == [dying.pid]
        assert ended_of([living.pid], 1, 0) == []
    finally:
        late.join()
        for process in (dying, living):
            process.kill()
            process.wait()
        living.stdin.close()


def failure(port=7, sent=1.5, done=2.5, opened=0.5, status=0, reason=CLOSED):
    times = (int(t * SECOND) for t in (sent, sent, done))
    return Sample(*times, status, reason, port=port, opened_ns=int(opened * SECOND))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"status": 503, "reason": "gone"}, True),
        ({"status": 500, "reason": "broken"}, False),
        ({"reason": TIMED_OUT}, False),
        ({"reason": REFUSED}, False),
        ({"port": 8}, False),
        ({"port": 8, "opened": 2.1}, False),
        ({"sent": 1.0, "done": 1.9}, False),
        ({"sent": 3.1, "done": 3.2}, False),
    ],
)
def test_a_death_explains_what_was_in_flight_there(changed, expected):
    """Only on connections of that worker, only then, and only as a 503 or a closed connection."""
    death = Death(1, frozenset({7}), 2 * SECOND, 3 * SECOND)
    assert death.explains(failure(**changed)) is expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"port": 8, "sent": 2.5, "done": 2.9}, True),
        ({"sent": 3.4, "done": 3.6}, True),
        ({"sent": 3.6, "done": 3.7}, False),
        ({"sent": 1.0, "done": 1.9}, False),
        ({"status": 500, "reason": "broken"}, False),
        ({"reason": TIMED_OUT}, False),
    ],
)
def test_the_death_of_all_workers_explains_what_was_in_flight_anywhere(changed, expected):
    """Until half a second after the last one was gone, and only as a 503 or a closed connection."""
    blackout = Blackout(2 * SECOND, 3 * SECOND, ())
    assert blackout.explains(failure(**changed)) is expected


def test_the_first_answer_is_of_a_worker_that_came_after_the_death_of_all():
    """Counted from the request that ended them; what was sent before may be of a dead one."""
    blackout = Blackout(2 * SECOND, 3 * SECOND, ())
    early, late = (failure(sent=sent, done=4.0, status=200, reason="") for sent in (2.9, 3.1))
    later = failure(sent=3.2, done=4.5, status=200, reason="")
    failed = failure(sent=3.1, done=3.3)
    assert blackout.first_answer_s([early, later, failed, late]) == 2.0
    assert blackout.first_answer_s([early, failed]) is None


def test_connections_of_a_process_are_found_by_their_far_end():
    """The port of a client is among those of the process that accepted it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert client.getsockname()[1] in connections_of(os.getpid())


def test_growth_is_named_and_bounded():
    """Files and mappings of files may not grow at all, memory by a twentieth."""
    before = Footprint(1000 << 20, files=20, threads=5, mappings=300, pieces=100)
    same = Footprint(1049 << 20, files=20, threads=5, mappings=300, pieces=120)
    assert same.growth_over(before) == ""
    more = Footprint(1000 << 20, files=21, threads=6, mappings=301, pieces=100)
    assert more.growth_over(before, STRICT) == "files 20 to 21, threads 5 to 6, mappings 300 to 301"
    assert more.growth_over(before, ROUGH) == "files 20 to 21, mappings 300 to 301"
    leak = Footprint(1100 << 20, files=20, threads=5, mappings=300, pieces=100)
    assert leak.growth_over(before, ROUGH).startswith("memory_bytes ")


def test_a_footprint_is_what_a_process_holds():
    """A process that keeps 32 MiB and a file has that much more."""
    code = (
        "import sys; f = open('/dev/null'); x = bytearray({} << 20); print(1, flush=True); input()"
    )
    found = []
    for mib in (0, 32):
        with subprocess.Popen(
            [sys.executable, "-c", code.format(mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            found.append(footprint([process.pid]))
            process.communicate(b"\n")
    small, large = found
    assert 31 << 20 < large.memory_bytes - small.memory_bytes < 34 << 20
    assert small.files == 4


@pytest.mark.slow
def test_a_footprint_is_taken_once_freed_memory_was_given_back():
    """What goes within the rest is not in it; without a rest it is."""
    code = (
        "import mmap, time; m = mmap.mmap(-1, 32 << 20, flags=34); m.write(b'x' * (32 << 20));"
        "print(1, flush=True); input(); time.sleep(0.6); m.close(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        full = quiet_footprint(lambda: [process.pid])
        process.stdin.write(b"\n")
        process.stdin.flush()
        rested = quiet_footprint(lambda: [process.pid], rest_s=1.5)
        process.communicate(b"\n")
    assert full.memory_bytes - rested.memory_bytes > 31 << 20


def test_one_broken_look_breaks_the_rule():
    """A later good look does not mend it; what nobody looked at is not judged."""
    outcome = Outcome("F0", "nothing", 1)
    outcome.judge("A", True, "")
    outcome.judge("B", False, "it broke")
    outcome.judge("B", True, "")
    assert [outcome.verdict(letter) for letter in "ABC"] == [HELD, BROKEN, NOT_JUDGED]
    assert not outcome.is_held
    lines = table([outcome]).splitlines()
    assert lines[0] == HEADER
    assert lines[1].split()[5:8] == ["ok", "FAIL", "-"]
    assert lines[2] == "F0 B: it broke"
    outcome.skipped = "no disk"
    assert outcome.line().endswith("skipped: no disk")


def test_every_fault_has_its_name_and_count():
    """The names are unique, and the counts those of the documentation."""
    assert {name: fault.full_count for name, fault in FAULTS.items()} == {
        "F1": 100, "F2": 50, "F3": 1, "F4": 1, "F5": 1, "F6": 500, "F6-cut": 20, "F8": 50,
        "F9": 5, "F10": 5, "F11": 2000, "connects": 50_000, "F13": 1000, "F14": 2048, "F15": 3,
        "F16": 10, "F17": 50, "F19": 1, "F20": 500, "F21": 10_000, "F22": 600, "rolling": 10,
    }  # fmt: skip
