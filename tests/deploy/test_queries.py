"""Every query of the dashboard and of the alerts asks for what a real server has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from onnx import TensorProto
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.files import ADDED_LABELS, grouped, queries, rules, selected
from tests.graphs import identity
from tests.process.server import RunningServer, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROW = [1.0, 2.0, 3.0, 4.0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("queries")) as server:
        yield server


@pytest.fixture(scope="module")
def series(server: RunningServer) -> dict[str, set[str]]:
    """The labels of every series of a server that has done a bit of everything, by name."""
    for rows in ("N", "M"):
        server.push("m", identity(TensorProto.FLOAT, (rows, 4)))
    route = {"split": [{"version": 1, "weight": 100}], "shadow": [2]}
    server.expect(server.admin("PUT", "/admin/v1/models/m/route", json=route))

    def shadowed() -> bool:
        assert server.infer("m", [ROW]).status_code == 200
        return "ramrack_shadow_total{" in server.admin("GET", "/metrics").text

    wait_until(shadowed, 60, "a shadow got a copy")
    found: dict[str, set[str]] = {"up": set()}
    for family in text_string_to_metric_families(server.admin("GET", "/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_each_query_names_series_and_labels_that_are_there(series: dict[str, set[str]]) -> None:
    """A metric that is renamed, or a label that is gone, would leave a panel or an alert empty."""
    recorded = {rule["record"]: {"model"} for rule in rules() if "record" in rule}
    known = series | recorded
    wrong = []
    count = 0
    for where, query, text in queries():
        labels: set[str] = set()
        for name, chosen in selected(query):
            count += 1
            if name not in known:
                wrong.append(f"{where}: {name} is not on the page")
                continue
            labels |= known[name] | ADDED_LABELS
            wrong += [f"{where}: {name} has no label {x}" for x in chosen - labels]
        shown = set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", text))
        wrong += [f"{where}: no label {x}" for x in (grouped(query) | shown) - labels]
    assert wrong == []
    assert count > 60


def test_the_latency_promise_has_a_bucket(server: RunningServer, series: object) -> None:
    """The share within 20 ms is exact only if a bucket ends there."""
    assert 'le="0.02"' in server.admin("GET", "/metrics").text


def test_every_metric_is_looked_at_somewhere(series: dict[str, set[str]]) -> None:
    """What no panel and no alert shows would be counted for nobody."""
    asked = {name for _, query, _ in queries() for name, _ in selected(query)}
    bases = {re.sub("_(bucket|count|sum)$", "", name) for name in asked}
    there = {re.sub("_(bucket|count|sum)$", "", name) for name in series}
    # Of little use on a graph of servers; people look them up.
    rest = {"process_virtual_memory_bytes", "process_start_time_seconds",
            "ramrack_cache_hits_total", "ramrack_cache_misses_total", "ramrack_rows_total",
            "ramrack_shadow_max_difference"}  # fmt: skip
    assert there - bases == rest
