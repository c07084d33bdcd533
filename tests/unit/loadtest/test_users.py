"""Shapes, gate and options of the Locust users, without Locust, which patches what it touches."""

from __future__ import annotations

import argparse

import pytest

from loadtest.users.gate import Promise, Seen, broken
from loadtest.users.options import add_options, chosen_shape, promise_of
from loadtest.users.shapes import SHAPES, users_at


def curve(shape: str, most: int = 100) -> list[int | None]:
    return [users_at(shape, float(second), 100.0, most) for second in range(101)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_stays_within_one_and_all_users_and_ends(shape: str):
    """The last moment ends the run; before it there is always somebody."""
    *users, last = curve(shape)
    assert last is None
    assert min(users) >= 1
    assert max(users) == 100
    assert users_at(shape, 0.0, 10.0, 1) == 1


def test_each_shape_is_what_its_name_says():
    """Steps rise five times, a spike comes and goes, a soak stays, a day has one peak at noon."""
    steps, spike, soak, day = (curve(name) for name in ("steps", "spike", "soak", "diurnal"))
    assert sorted(set(steps[:-1])) == steps[:-1:20] == [20, 40, 60, 80, 100]
    assert (spike[39], spike[40], spike[59], spike[60]) == (10, 100, 100, 10)
    assert set(soak[5:-1]) == {100}
    assert day[:-1].index(100) in range(45, 51)
    assert (day[0], day[99]) == (10, 11)


def test_a_shape_that_is_none_is_refused():
    """The names that exist are listed."""
    with pytest.raises(ValueError, match="'wave' is not one of steps, spike"):
        users_at("wave", 0, 1, 1)


def test_the_gate_says_each_promise_that_was_broken():
    """A p99 above the target and too many failures are two reasons; within both there is none."""
    promise = Promise(p99_ms=20.0, error_rate=0.01)
    assert broken(promise, Seen(1000, 10, 20.0)) == []
    assert broken(promise, Seen(1000, 11, 21.0)) == [
        "p99 is 21 ms, allowed are 20 ms",
        "11 of 1000 requests failed (1.10%), allowed are 1.00%",
    ]
    assert broken(Promise(p99_ms=1.0), Seen(10, 10, None)) == ["p99 is unknown, allowed are 1 ms"]


def test_a_run_without_a_request_keeps_no_promise():
    """Nothing measured is never green."""
    assert broken(Promise(error_rate=1.0), Seen(0, 0, None)) == ["no request was sent"]


class Parser:
    """As Locust's: options have variables of their own."""

    def __init__(self) -> None:
        self.inner = argparse.ArgumentParser()

    def add_argument_group(self, _title: str) -> Parser:
        return self

    def add_argument(self, *names: str, env_var: str, **options) -> None:
        assert env_var.startswith("LOADTEST_")
        self.inner.add_argument(*names, **options)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = Parser()
    add_options(parser)
    return parser.inner.parse_args(list(arguments))


def test_options_have_defaults_and_become_a_promise():
    """Without a promise there is no gate; 0 failures is one."""
    assert not promise_of(parsed()).is_given
    assert promise_of(parsed("--slo-error-rate", "0")) == Promise(None, 0.0)
    assert promise_of(parsed("--slo-p99-ms", "20")).p99_ms == 20.0


@pytest.mark.parametrize(
    "arguments",
    [["--rows", "0"], ["--models", "a=0"], ["--slo-error-rate", "2"], ["--slo-p99-ms", "-1"],
     ["--slo-p99-ms", "x"], ["--per-user", "nan"], ["--shape", "wave"]],
)  # fmt: skip
def test_options_out_of_range_are_wrong_usage(arguments: list[str]):
    """Each is refused before anything is sent."""
    with pytest.raises(SystemExit):
        parsed(*arguments)


def test_the_shape_is_known_before_options_are_parsed(monkeypatch):
    """From the command line, or from the environment."""
    monkeypatch.delenv("LOADTEST_SHAPE", raising=False)
    assert chosen_shape(["--headless", "--shape", "spike", "-u", "3"]) == "spike"
    assert chosen_shape(["--shape=soak"]) == "soak"
    assert chosen_shape(["-u", "3"]) == ""
    monkeypatch.setenv("LOADTEST_SHAPE", "steps")
    assert chosen_shape([]) == "steps"
