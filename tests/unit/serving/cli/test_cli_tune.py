"""``tune``: what it tries, how it searches, when it leaves the defaults. Servers are made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from models.convert.onnx_file import package_onnx
from registry.errors import InvalidInput
from registry.store import Store
from serving.cli import load_run, main, tune_rig
from serving.cli.tune_report import settings_text
from serving.cli.tune_rig import Effort
from serving.cli.tune_run import Course
from serving.cli.tune_search import (
    Found,
    OutOfTime,
    Probe,
    Sureness,
    Trials,
    halve,
    highest_rate,
    judge,
)
from serving.cli.tune_space import DEFAULTS, Candidate, candidates, crossed
from serving.cli.tune_store import package_of
from serving.settings import load_settings
from tests import graphs
from tests.store_driver import publish_package

ONE = Candidate(workers=1, threads_per_worker=2)


def server_of(limit: float):
    """A probe of a server that answers in time up to ``limit`` a second."""
    seen: list[float] = []

    def probe(rate: float) -> Probe:
        seen.append(rate)
        return Probe(rate <= limit, 5.0 if rate <= limit else 500.0)

    probe.seen = seen  # type: ignore[attr-defined]
    return probe


@pytest.mark.parametrize("start", [1.0, 90.0, 100.0, 5000.0])
def test_the_highest_rate_is_found_from_above_and_from_below(start: float):
    """Wherever it begins, it ends just below what the server can do."""
    found = highest_rate(server_of(100.0), start, factor=1.5, most_probes=30)
    assert 97 <= found.rate <= 100
    assert found.p99_ms == 5.0


def test_probes_are_bounded_and_a_server_that_is_too_slow_has_rate_0():
    """Few probes give a rough answer; none within the target is no rate, and it ends."""
    probe = server_of(1000.0)
    assert highest_rate(probe, 10.0, factor=1.5, most_probes=3).rate == 22.5
    assert len(probe.seen) == 3
    assert highest_rate(server_of(0.0), 100.0, factor=1.5, most_probes=50) == Found(
        0.0, None, highest_rate(server_of(0.0), 100.0, factor=1.5, most_probes=50).probes
    )


def test_a_busy_generator_is_not_taken_for_a_slow_server():
    """What could not be sent is said, not counted against the server."""
    found = highest_rate(
        lambda rate: Probe(rate < 200, 5.0, is_limited=rate >= 200), 100.0, factor=1.5,
        most_probes=9,
    )  # fmt: skip
    assert (found.rate, found.is_limited) == (150.0, True)


def test_time_that_runs_out_keeps_what_was_found():
    """The last good rate stands; without any there is nothing."""
    calls = iter([Probe(True, 1.0)])

    def probe(_: float) -> Probe:
        try:
            return next(calls)
        except StopIteration:
            raise OutOfTime from None

    assert highest_rate(probe, 10.0, factor=2, most_probes=9).rate == 10.0
    with pytest.raises(OutOfTime):
        highest_rate(probe, 10.0, factor=2, most_probes=9)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 64])
def test_what_is_tried_fits_the_machine_and_the_target(cores: int):
    """The defaults come first, each once; no more threads than cores; no wait near the target."""
    tried = candidates(cores, 20.0)
    assert tried[0] == DEFAULTS
    assert len(set(tried)) == len(tried) <= 14
    for candidate in tried:
        assert candidate.workers * candidate.threads_per_worker <= cores
        assert candidate.max_queue_delay_ms <= 5.0
    assert any(not candidate.batching for candidate in tried)
    assert all(each.max_queue_delay_ms == 0 for each in candidates(cores, 2.0))


def test_what_is_tried_are_settings_that_the_server_takes(tmp_path: Path):
    """Every key of every candidate is a setting with an allowed value."""
    for candidate in candidates(8, 1000.0):
        config = tmp_path / "ramrack.toml"
        config.write_text(settings_text("m", 20.0, judge(candidate, candidate, (), ()), 8))
        settings = load_settings(config, {}, {})
        for name, value in candidate.server_settings().items():
            assert getattr(settings, name) == value


def test_the_best_of_each_respect_is_joined():
    """Two things that help alone are tried together; one alone is nothing new."""
    delay = Candidate(max_queue_delay_ms=1.0)
    assert crossed([ONE, delay, Candidate(workers=1, threads_per_worker=1)]) == replace(
        ONE, max_queue_delay_ms=1.0
    )
    assert crossed([ONE]) is None
    assert crossed([]) is None


def test_the_better_half_goes_on_and_the_defaults_always():
    """What all are held to is measured to the end."""
    ranked = [Candidate(workers=n) for n in range(1, 8)]
    assert halve([*ranked, DEFAULTS], DEFAULTS) == [*ranked[:4], DEFAULTS]
    assert halve([DEFAULTS], DEFAULTS) == [DEFAULTS]


@pytest.mark.parametrize(
    ("default", "best", "sureness"),
    [
        ((100, 101, 99), (150, 140, 160), Sureness.CLEAR),
        ((100, 130, 99), (120, 125, 140), Sureness.LIKELY),
        ((100, 101, 99), (101, 102, 101), Sureness.NONE),
        ((100, 160, 150), (150, 120, 110), Sureness.NONE),
        ((100,), (200,), Sureness.NONE),
        ((), (), Sureness.NONE),
        ((0.0, 0.0), (10, 12), Sureness.CLEAR),
        ((10, 12), (0.0, 0.0), Sureness.NONE),
    ],
)
def test_the_defaults_are_left_only_for_what_was_seen_again(default, best, sureness):
    """Clear, likely, or noise: and with noise the defaults stay."""
    verdict = judge(DEFAULTS, ONE, default, best)
    assert verdict.sureness is sureness
    assert verdict.chosen == (DEFAULTS if sureness is Sureness.NONE else ONE)
    assert verdict.words()


class FakeRig:
    """Servers whose highest rates are known, on a clock of its own."""

    def __init__(self, rates: dict[Candidate, float], each_s: float = 1.0) -> None:
        self.rates, self.each_s = rates, each_s
        self.now_s = 1000.0
        self.measured: list[Candidate] = []

    def prepare(self) -> float:
        return 0.5

    def clock(self) -> float:
        return self.now_s

    def measure(
        self, candidate: Candidate, start: float, effort: Effort, budget_s: float, until_s: float
    ) -> Found:
        assert budget_s > 0
        if self.now_s + self.each_s > until_s:
            raise OutOfTime
        self.now_s += self.each_s
        self.measured.append(candidate)
        rate = self.rates.get(candidate, 50.0)
        if rate < 0:
            raise InvalidInput("it does not start")
        noise = 1 + 0.001 * (len(self.measured) % 3)
        return Found(rate * noise, 10.0, 3)


def course(rig: FakeRig, total_s: float = 270.0) -> Course:
    return Course(rig, total_s, lambda _: None, rig.clock)


def test_the_best_settings_are_found_and_held_to_the_defaults_in_turn():
    """Each in a first look, few for longer, two in turn with changing order."""
    rig = FakeRig({DEFAULTS: 100.0, ONE: 180.0, Candidate(batching=False): 20.0})
    verdict = course(rig).run(candidates(2, 20.0))
    assert (verdict.chosen, verdict.sureness) == (ONE, Sureness.CLEAR)
    assert rig.measured[-6:] == [DEFAULTS, ONE, ONE, DEFAULTS, DEFAULTS, ONE]
    assert len(verdict.ratios) == 3


def test_two_respects_that_help_are_tried_together():
    """A set that nobody listed is found."""
    delay = Candidate(max_queue_delay_ms=1.0)
    both = replace(ONE, max_queue_delay_ms=1.0)
    rig = FakeRig({DEFAULTS: 100.0, ONE: 150.0, delay: 120.0, both: 200.0})
    assert course(rig).run(candidates(2, 20.0)).chosen == both


def test_a_set_that_does_not_start_is_left_out_and_the_defaults_must():
    """One failure is noted; without defaults there is nothing to hold anything to."""
    rig = FakeRig({ONE: -1.0})
    running = course(rig)
    assert running.run(candidates(2, 20.0)).chosen == DEFAULTS
    assert running.trials.failed == {ONE: "it does not start"}
    with pytest.raises(InvalidInput, match="does not start"):
        course(FakeRig({DEFAULTS: -1.0})).run(candidates(2, 20.0))


@pytest.mark.parametrize("each_s", [5.0, 15.0, 40.0])
def test_it_ends_in_time(each_s: float):
    """However slow each measurement is, the sum stays within what was given."""
    rig = FakeRig({ONE: 80.0}, each_s)
    course(rig).run(candidates(8, 20.0))
    assert rig.now_s <= 1000.0 + 270.0


def test_too_little_time_for_the_defaults_is_said():
    """Nothing is claimed of what was not measured."""
    with pytest.raises(InvalidInput, match="2 minutes are too few"):
        course(FakeRig({}, 100.0), 120.0).run(candidates(2, 20.0))


def test_the_last_rate_counts_when_ranking():
    """A longer look corrects a short one."""
    trials = Trials()
    trials.add(ONE, Found(500.0))
    trials.add(DEFAULTS, Found(100.0))
    trials.add(ONE, Found(90.0))
    assert trials.ranked() == [DEFAULTS, ONE]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store") as opened:
        publish_package(opened, package_onnx("m", graphs.gemm()))
    return tmp_path / "store"


def test_a_version_is_read_from_a_store_that_stays_as_it_is(store: Path):
    """Everything that a push would send, by number or the highest; unknown ones are named."""
    before = {path: path.stat().st_ctime_ns for path in store.rglob("*")}
    package, number = package_of(store, "m", None)
    assert number == 1
    assert package.manifest.model == "m"
    assert {item.digest for item in package.objects} == package.manifest.object_digests
    assert all(len(b"".join(item.chunks())) == item.size_bytes for item in package.objects)
    assert {path: path.stat().st_ctime_ns for path in store.rglob("*")} == before
    with pytest.raises(InvalidInput, match="'nope' is not in this store: it has m"):
        package_of(store, "nope", None)
    with pytest.raises(InvalidInput, match="version 7"):
        package_of(store, "m", 7)


@pytest.fixture
def fake(monkeypatch) -> FakeRig:
    # One that is tried whatever the number of cores.
    found = FakeRig({Candidate(inline_ms=0.0): 180.0, DEFAULTS: 100.0})

    @contextmanager
    def fake_rig(*_: object) -> Iterator[FakeRig]:
        yield found

    monkeypatch.setattr(tune_rig, "rig", fake_rig)
    return found


def test_the_command_prints_writes_and_changes_nothing(store, fake, tmp_path, capsys, server):
    """A table, and a settings file that the server reads; no call to any running server."""
    del fake
    output = tmp_path / "found.toml"
    arguments = ["tune", "m", "--p99-ms", "20", "--store", str(store), "--output", str(output)]
    assert main([*arguments, "--admin-url", server.url]) == 0
    printed = capsys.readouterr()
    assert "defaults" in printed.out
    assert "clear" in printed.err
    assert "Found by: ramrack tune m --p99-ms 20" in output.read_text()
    assert load_settings(output, {}, {}).inline_ms == 0.0
    assert server.calls == []
    # What is there is never written over.
    assert main(arguments) == 2
    assert "it exists" in capsys.readouterr().err


def test_only_apply_changes_a_running_server_and_only_what_differs(
    store, monkeypatch, capsys, server
):
    """The model's batching, with a reason for the record; the rest is said to need a start."""
    found = FakeRig({Candidate(batching=False): 180.0, DEFAULTS: 100.0})

    @contextmanager
    def fake_rig(*_: object) -> Iterator[FakeRig]:
        yield found

    monkeypatch.setattr(tune_rig, "rig", fake_rig)
    path = "/admin/v1/models/m/settings"
    server.answers["GET", path] = [(200, {"settings": {"batching": None}, "etag": '"1"'})]
    server.answers["PUT", path] = [(200, {"settings": {"batching": False}, "etag": '"2"'})]
    arguments = ["tune", "m", "--p99-ms", "20", "--store", str(store), "--admin-url", server.url]
    assert main([*arguments, "--apply"]) == 0
    changes = [call for call in server.calls if call[0] == "PUT"]
    assert [(call[1], call[2], json.loads(call[3])) for call in changes] == [
        (path, {"reason": ["ramrack tune"]}, {"batching": False})
    ]
    assert "batching of m is off" in capsys.readouterr().err


def test_apply_without_a_server_fails_before_the_search(store, fake, capsys):
    """Not after five minutes."""
    arguments = ["tune", "m", "--p99-ms", "20", "--store", str(store), "--apply"]
    assert main([*arguments, "--admin-url", "http://127.0.0.1:1"]) == 1
    assert fake.measured == []
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_json_has_every_trial(store, fake, capsys):
    """All of it for scripts."""
    assert main(["tune", "m", "--p99-ms", "20", "--store", str(store), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "m"
    assert len(found["trials"]) == len(set(fake.measured))
    assert {"settings", "rates", "p99_ms", "is_limited"} == set(found["trials"][0])


@pytest.mark.parametrize(
    "flags",
    [[], ["--p99-ms", "0"], ["--p99-ms", "20", "--minutes", "0"],
     ["--p99-ms", "20", "--store", "/nowhere"],
     ["--p99-ms", "20", "--output", "/nowhere/ramrack.toml"]],
)  # fmt: skip
def test_wrong_usage_starts_nothing(flags: list[str], fake):
    """A target is needed, and numbers that mean something."""
    assert main(["tune", "m", *flags]) == 2
    assert fake.measured == []


def test_the_extra_is_named_where_it_is_missing(store, fake, monkeypatch, capsys):
    """Before anything is started."""
    monkeypatch.setattr(load_run.importlib.util, "find_spec", lambda _: None)
    assert main(["tune", "m", "--p99-ms", "20", "--store", str(store)]) == 1
    assert "ramrack[loadtest]" in capsys.readouterr().err
    assert fake.measured == []
