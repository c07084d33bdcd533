"""Writes deploy/grafana/dashboards/ramrack.json; a test holds the file to what this would write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "deploy/grafana/dashboards/ramrack.json"
SOURCE = {"type": "prometheus", "uid": "ramrack-prometheus"}
OF = 'instance=~"$instance"'
MODEL = f'{OF},model=~"$model"'
WIDTH, HEIGHT, COLUMNS = 8, 8, 24
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Panel:
    """A panel: its queries with the legend of each, and the unit of what they give."""

    title: str
    about: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    is_stacked: bool = False


def rate(name: str, by: str, where: str = MODEL) -> str:
    """Return a counter's growth a second, summed."""
    return f"sum by ({by}) (rate({name}{{{where}}}[$__rate_interval]))"


def quantiles(name: str, by: str = "le", where: str = MODEL) -> tuple[tuple[str, str], ...]:
    """Return the quantiles of a histogram of seconds."""
    bucket = rate(f"{name}_bucket", by, where)
    return tuple((f"histogram_quantile({q}, {bucket})", f"p{q * 100:g}") for q in QUANTILES)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Requests", (
        Panel("Requests a second", "By model and version.",
              ((rate("ramrack_requests_total", "model, version"), "{{model}}/{{version}}"),),
              "reqps", is_stacked=True),
        Panel("Errors", "Share that fail or are refused; a client's own mistakes apart.",
              (("ramrack:errors:ratio_rate5m{model=~\"$model\"}", "{{model}}"),), "percentunit"),
        Panel("Answers by code", "400 to 415 and 431 are the clients', 429 and 5xx are ours.",
              ((rate("ramrack_requests_total", "code"), "{{code}}"),), "reqps", is_stacked=True),
        Panel("Duration", "From the request to its answer.",
              quantiles("ramrack_request_duration_seconds"), "s"),
        Panel("Of that, waiting for a run", "Grows first where a model has too little room.",
              quantiles("ramrack_queue_duration_seconds"), "s"),
        Panel("Of that, one run of the graph", "With the rows of all requests that share it.",
              quantiles("ramrack_inference_duration_seconds"), "s"),
        Panel("Later than 20 ms", "Share of answers; one in a hundred is promised.",
              (("ramrack:slow:ratio_rate5m{model=~\"$model\"}", "{{model}}"),), "percentunit"),
        Panel("Rows of a run", "1: nobody shares a run.",
              (((f"{rate('ramrack_batch_rows_sum', 'model, version')} / "
                f"{rate('ramrack_batch_rows_count', 'model, version')}"),
                "{{model}}/{{version}}"),)),
        Panel("Turned away", "By reason, before anything was computed.",
              ((rate("ramrack_rejected_total", "reason", OF), "{{reason}}"),), "reqps",
              is_stacked=True),
        Panel("Waiting rows", "Against the room in the queues of living workers.",
              (((f"sum by (model, version) (ramrack_queue_depth{{{MODEL}}}) / "
                f"sum by (model, version) (ramrack_queue_limit{{{MODEL}}})"),
                "{{model}}/{{version}}"),), "percentunit"),
        Panel("Under way", "Requests in all workers.",
              ((f"sum by (model, version) (ramrack_in_flight{{{MODEL}}})",
                "{{model}}/{{version}}"),)),
        Panel("Shadows", "What came of copies of requests.",
              ((rate("ramrack_shadow_total", "model, version, result"),
                "{{model}}/{{version}} {{result}}"),), "reqps"),
    )),
    ("Versions", (
        Panel("State", "1 while a version is in the state.",
              ((f"max by (model, version, state) (ramrack_version_state{{{MODEL}}}) == 1",
                "{{model}}/{{version}} {{state}}"),), kind="state-timeline"),
        Panel("Swaps", "Changes of who answers.",
              ((f"sum(increase(ramrack_swaps_total{{{OF}}}[$__rate_interval]))", "swaps"),)),
        Panel("Loads", "That ended, by result.",
              ((f"sum by (result) (increase(ramrack_loads_total{{{OF}}}[$__rate_interval]))",
                "{{result}}"),)),
        Panel("Duration of loads", "What the last load of each version took.",
              ((f"max by (model, version) (ramrack_load_duration_seconds{{{MODEL}}})",
                "{{model}}/{{version}}"),), "s"),
        Panel("Missing values", "Of what the inputs should hold, a row.",
              (((f"{rate('ramrack_missing_values_total', 'model')} / "
                f"{rate('ramrack_batch_rows_sum', 'model')}"), "{{model}}"),)),
        Panel("Unseen categories", "Values that training did not know, a row.",
              (((f"{rate('ramrack_unseen_categories_total', 'model')} / "
                f"{rate('ramrack_batch_rows_sum', 'model')}"), "{{model}}"),)),
        Panel("Unknown columns", "Columns that clients send and versions do not know.",
              ((rate("ramrack_unknown_columns_total", "model"), "{{model}}"),)),
    )),
    ("Memory", (
        Panel("Budget", "What versions may take, and what they take.",
              ((f"sum(ramrack_memory_budget_bytes{{{OF}}})", "budget"),
               (f"sum(ramrack_memory_committed_bytes{{{OF}}})", "taken"),
               ((f"sum(ramrack_memory_budget_bytes{{{OF}}}) - "
                f"sum(ramrack_memory_committed_bytes{{{OF}}})"), "free"),
               (f"sum(ramrack_memory_unreleased_bytes{{{OF}}})", "not given back")), "bytes"),
        Panel("Resident weights", "Once a machine; versions that share a tensor both count it.",
              ((f"sum by (model, version) (ramrack_resident_bytes{{{MODEL}}})",
                "{{model}}/{{version}}"),), "bytes", is_stacked=True),
        Panel("Private memory", "Over all workers.",
              ((f"sum by (model, version) (ramrack_private_bytes{{{MODEL}}})",
                "{{model}}/{{version}}"),), "bytes", is_stacked=True),
        Panel("Locked weights", "What the kernel promised never to evict.",
              ((f"sum by (model, version) (ramrack_locked_bytes{{{MODEL}}})",
                "{{model}}/{{version}}"),), "bytes", is_stacked=True),
        Panel("Evicted weights", "Bytes a second that had to be read again.",
              ((f"sum(rate(ramrack_evicted_bytes_total{{{OF}}}[$__rate_interval]))", "evicted"),),
              "Bps"),
        Panel("Disk", "Of the store.",
              ((f"sum(ramrack_store_bytes{{{OF}}})", "objects"),
               (f"sum(ramrack_disk_free_bytes{{{OF}}})", "free"),
               (f"sum(ramrack_disk_bytes{{{OF}}})", "size")), "bytes"),
    )),
    ("Processes", (
        Panel("Processor by worker", "1: a whole core. Polling is a part of it, and no work.",
              ((rate("ramrack_worker_cpu_seconds_total", "slot", OF), "worker {{slot}}"),
               (rate("ramrack_worker_poll_seconds_total", "slot", OF), "worker {{slot}} polling"),
               (f"sum(rate(process_cpu_seconds_total{{{OF}}}[$__rate_interval]))", "parent"))),
        Panel("Processor by model", "Of the threads that run its graph.",
              ((rate("ramrack_run_cpu_seconds_total", "model"), "{{model}}"),), is_stacked=True),
        Panel("Event loop", "How late each worker wakes.",
              ((f"max by (slot) (ramrack_event_loop_lag_seconds{{{OF}}})", "worker {{slot}}"),),
              "s"),
        Panel("Workers", "That serve.",
              ((f"sum by (instance) (ramrack_worker_up{{{OF}}})", "{{instance}}"),)),
        Panel("Restarts", "Of workers, by reason.",
              (((f"sum by (reason) (increase(ramrack_worker_restarts_total{{{OF}}}"
                "[$__rate_interval]))"), "{{reason}}"),)),
        Panel("Memory of the parent", "Of its own, beside the workers'.",
              ((f"sum by (instance) (process_resident_memory_bytes{{{OF}}})", "{{instance}}"),),
              "bytes"),
        Panel("Open files of the parent", "Against how many it may open.",
              ((f"sum by (instance) (process_open_fds{{{OF}}})", "{{instance}}"),
               (f"max by (instance) (process_max_fds{{{OF}}})", "{{instance}} limit"))),
    )),
)  # fmt: skip


def dashboard() -> dict[str, object]:
    """Return the dashboard as Grafana reads it."""
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS:
        head: dict[str, object] = {"type": "row", "title": title, "collapsed": False, "panels": []}
        panels.append(
            {**head, "id": len(panels) + 1, "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}}
        )
        y += 1
        for index, panel in enumerate(row):
            x = index * WIDTH % COLUMNS
            panels.append(_panel(panel, len(panels) + 1, x, y + index * WIDTH // COLUMNS * HEIGHT))
        y += -(-len(row) * WIDTH // COLUMNS) * HEIGHT
    return {
        "uid": "ramrack", "title": "Ramrack", "tags": ["ramrack"], "schemaVersion": 39,
        "version": 1, "editable": True, "refresh": "30s", "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "annotations": {"list": [_swaps()]},
        "templating": {"list": [
            _variable("instance", "label_values(ramrack_build_info, instance)"),
            _variable("model", 'label_values(ramrack_version_state{instance=~"$instance"}, model)'),
        ]},
        "panels": panels,
    }  # fmt: skip


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, object]:
    stacking = {"mode": "normal" if panel.is_stacked else "none"}
    custom: dict[str, object] = {"fillOpacity": 70, "lineWidth": 0}
    if panel.kind == "timeseries":
        opacity = 20 if panel.is_stacked else 5
        custom = {"fillOpacity": opacity, "showPoints": "never", "lineWidth": 1}
        custom["stacking"] = stacking
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.about,
        "datasource": SOURCE, "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom},
                        "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def _swaps() -> dict[str, object]:
    return {
        "name": "Swaps", "datasource": SOURCE, "enable": True, "iconColor": "orange",
        "expr": f"sum by (instance) (changes(ramrack_swaps_total{{{OF}}}[$__rate_interval])) > 0",
        "titleFormat": "the route changed",
    }  # fmt: skip


def _variable(name: str, query: str) -> dict[str, object]:
    return {
        "name": name, "label": name, "type": "query", "datasource": SOURCE, "query": query,
        "refresh": 2, "includeAll": True, "multi": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def text() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
