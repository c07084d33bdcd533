"""What the tests of deploy/ read: its files, and the queries in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/rules.yml"
DASHBOARD = DEPLOY / "grafana/dashboards/ramrack.json"
# Prometheus itself adds these to what it scrapes.
ADDED_LABELS = {"instance", "job"}


def documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def rules() -> list[dict[str, Any]]:
    """Return all recording and alert rules."""
    (document,) = documents(RULES)
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the dashboard's panels but for the rows' titles."""
    return [p for p in json.loads(DASHBOARD.read_text("utf-8"))["panels"] if p["type"] != "row"]


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield where a query stands, its text, and the labels that its legend or text shows."""
    for rule in rules():
        name = rule.get("alert") or rule["record"]
        yield name, rule["expr"], " ".join(rule.get("annotations", {}).values())
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    document = json.loads(DASHBOARD.read_text("utf-8"))
    for variable in document["templating"]["list"]:
        yield variable["name"], variable["query"], ""
    for annotation in document["annotations"]["list"]:
        yield annotation["name"], annotation["expr"], ""


def selected(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each series that a query names, with the labels that it is chosen by."""
    for name, where in re.findall(r"\b((?:ramrack|process)[_:][\w:]+|\bup\b)(?:{([^}]*)})?", query):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", where))


def grouped(query: str) -> set[str]:
    """Return the labels that a query groups by or asks the values of."""
    found: set[str] = set()
    for labels in re.findall(r"\bby \(([^)]*)\)", query):
        found |= set(re.findall(r"\w+", labels))
    found |= set(re.findall(r"label_values\(.*, (\w+)\)", query))
    return found
