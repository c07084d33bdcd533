"""The files of deploy/ are whole, agree with each other, and hold to rules that tools check too."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from serving import healthcheck
from serving.cli.service_units import Service, units
from serving.settings import Settings
from serving.web.errors import request_id_of
from tests.deploy.files import DASHBOARD, DEPLOY, ROOT, documents, panels, rules, selected

sys.path.insert(0, str(ROOT / "scripts"))
from dashboard import text as dashboard_text

OPERATING = ROOT / "docs/OPERATING.md"


def kubernetes() -> list[dict[str, Any]]:
    return [d for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for d in documents(path)]


def containers() -> list[dict[str, Any]]:
    found = []
    for document in kubernetes():
        spec = document["spec"]
        spec = spec.get("template", {}).get("spec", spec)
        found += spec.get("containers", [])
    return found


# Grafana and Prometheus


def test_the_dashboard_is_what_the_script_writes() -> None:
    """scripts/dashboard.py writes it anew."""
    assert DASHBOARD.read_text("utf-8") == dashboard_text()


def test_panels_are_whole_and_do_not_overlap() -> None:
    """Each has a title, a description, an id of its own, and room of its own."""
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for panel in found:
        assert panel["title"]
        assert panel["description"].endswith(".")
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_axis_has_one_unit() -> None:
    """Bytes are drawn as bytes and seconds as seconds, and no panel mixes them with a count."""
    for panel in panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        found = {unit_of(target["expr"]) for target in panel["targets"]}
        assert len(found) == 1, panel["title"]
        if found <= {"bytes", "s"}:
            assert unit in found, panel["title"]
        else:
            assert unit not in ("bytes", "s"), panel["title"]


def unit_of(query: str) -> str:
    """Return the unit that a query's metrics are in: a ratio or a rate of seconds has none."""
    names = {name for name, _ in selected(query)}
    if all(name.endswith("_bytes") for name in names):
        return "bytes"
    if all(name.endswith(("_seconds", "_seconds_bucket")) for name in names):
        return "s"
    return "none"


def test_a_swap_between_two_scrapes_is_marked() -> None:
    """A window of one step may hold one sample alone, in which nothing ever changes."""
    for annotation in json.loads(DASHBOARD.read_text("utf-8"))["annotations"]["list"]:
        assert "[$__rate_interval]" in annotation["expr"]


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    """The provisioned source is the one that each panel names, in the folder that is mounted."""
    provisioning = DEPLOY / "grafana/provisioning"
    (sources,) = documents(provisioning / "datasources/prometheus.yml")
    (uid,) = [source["uid"] for source in sources["datasources"]]
    assert {panel["datasource"]["uid"] for panel in panels()} == {uid}
    (provider,) = documents(provisioning / "dashboards/ramrack.yml")
    folder = provider["providers"][0]["options"]["path"]
    (compose,) = documents(DEPLOY / "compose.yaml")
    assert f"./grafana/dashboards:{folder}:ro" in compose["services"]["grafana"]["volumes"]
    assert json.loads(DASHBOARD.read_text())["uid"] == "ramrack"


def test_both_scrape_configurations_differ_in_the_target_only() -> None:
    """The one for compose names the server as it is called there."""
    (own,) = documents(DEPLOY / "prometheus/prometheus.yml")
    (composed,) = documents(DEPLOY / "prometheus/compose.yml")
    (job,), (other,) = own["scrape_configs"], composed["scrape_configs"]
    targets = [job.pop("static_configs"), other.pop("static_configs")]
    assert own == composed
    ports = [x[0]["targets"][0].rpartition(":")[2] for x in targets]
    assert ports == [str(Settings().admin_port)] * 2


def test_every_alert_is_explained_and_every_explained_one_exists() -> None:
    """docs/OPERATING.md says for each alert what to do."""
    alerts = [rule["alert"] for rule in rules() if "alert" in rule]
    assert len(set(alerts)) == len(alerts)
    told = re.findall(r"^\| `(Ramrack\w+)`", OPERATING.read_text("utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(alerts)
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert {"summary", "description"} == set(rule["annotations"])


def test_every_alert_has_a_test_that_fires_it() -> None:
    """A rule that nobody has seen fire may be one that cannot."""
    tests = (DEPLOY / "prometheus/tests.yml").read_text("utf-8")
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    fired = set(re.findall(r'alertname="(\w+)"', tests))
    (document,) = documents(DEPLOY / "prometheus/tests.yml")
    for test in document["tests"]:
        fired |= {a["alertname"] for a in test.get("alert_rule_test", ()) if a["exp_alerts"]}
    assert alerts == fired


# Container


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, continued lines joined, without comments."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(" ", 1)) for line in joined.splitlines()]  # type: ignore[misc]


def test_the_dockerfile_holds_to_the_rules_of_images() -> None:
    """Two stages, a fixed user that is not root, exec forms, no shell tools, nothing unpinned."""
    steps = instructions()
    kinds = [kind for kind, _ in steps]
    assert kinds.count("FROM") == 2
    last = steps[len(kinds) - 1 - kinds[::-1].index("FROM") :]
    final = dict(last)
    assert final["USER"] == "10001:10001"
    for kind in ("CMD", "VOLUME"):
        assert isinstance(json.loads(final[kind]), list), f"{kind} must be of the exec form"
    check = json.loads(final["HEALTHCHECK"].partition("CMD ")[2])
    assert check == ["python", "-m", healthcheck.__name__]
    assert "ENTRYPOINT" not in kinds
    assert "ADD" not in kinds
    assert f"{Settings().port} {Settings().admin_port}" == final["EXPOSE"]
    for kind, text in steps:
        if kind == "RUN":
            assert "apt" not in text.split()
            assert "curl" not in text
            for part in text.split("&&"):
                if "pip install" in part:
                    assert "--no-cache-dir" in part
                    assert "--require-hashes" in part or "--no-index" in part, part
        if kind == "COPY" and "--from" not in text:
            for source in text.split()[:-1]:
                assert (ROOT / source).exists(), f"COPY {source}"
    # What changes often is copied after what is installed from the lock files.
    copies = [text for kind, text in steps if kind == "COPY"]
    assert "requirements-server.lock" in copies[0]
    assert "serving" not in copies[0]


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    """.dockerignore leaves out all but the sources of COPY."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").split("\n")
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = {source for kind, text in instructions() if kind == "COPY" and "--from" not in text
              for source in text.split()[:-1] if source != "./"}  # fmt: skip
    assert "*" in lines
    assert kept == copied


def test_the_locks_of_the_image_are_parts_of_the_lock_that_is_tested() -> None:
    """The server's packages are the very releases that the tests ran with."""

    def pins(name: str) -> dict[str, str]:
        text = (ROOT / name).read_text("utf-8")
        return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))

    tested = pins("requirements.lock")
    for name in ("requirements-server.lock", "requirements-build.lock"):
        assert pins(name).items() <= tested.items(), name
    assert {"onnxruntime", "uvicorn", "prometheus-client"} <= set(pins("requirements-server.lock"))
    assert not {"pytest", "scikit-learn", "catboost"} & set(pins("requirements-server.lock"))
    assert "hatchling" in pins("requirements-build.lock")


def test_compose_holds_the_server_to_what_the_image_promises() -> None:
    """A root that is read only, no capabilities, loopback only, a token, locked memory."""
    (compose,) = documents(DEPLOY / "compose.yaml")
    services = compose["services"]
    assert set(services) == {"ramrack", "prometheus", "grafana", "locust"}
    server = services["ramrack"]
    assert server["read_only"] is True
    assert server["tmpfs"] == ["/tmp"]
    assert server["cap_drop"] == ["ALL"]
    assert server["ulimits"]["memlock"] == -1
    assert server["environment"]["RAMRACK_ADMIN_TOKEN"].startswith("${RAMRACK_ADMIN_TOKEN:?")
    assert int(server["stop_grace_period"].rstrip("s")) > Settings().stop_timeout_s + 5
    names = {name.lower() for name in dir(Settings())}
    for service in services.values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:")
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), volume
            else:
                assert source in compose["volumes"]
        for name in service.get("environment", {}):
            if name.startswith("RAMRACK_") and name != "RAMRACK_ADMIN_TOKEN":
                assert name.removeprefix("RAMRACK_").lower() in names, name
        if "image" in service:
            assert re.search(r":v?\d+\.\d+", service["image"]), "no moving tag"


def test_no_secret_that_compose_reads_can_be_committed() -> None:
    """The head of the file has its reader write them into the working tree."""
    (compose,) = documents(DEPLOY / "compose.yaml")
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    for secret in compose["secrets"].values():
        path = (DEPLOY / secret["file"]).resolve().relative_to(ROOT)
        assert f"/{path}" in ignored


# systemd, nginx, Kubernetes


def test_the_units_are_what_the_command_writes() -> None:
    """ramrack install-service writes the same, with its own path."""
    there = {path.name: path.read_text("utf-8") for path in (DEPLOY / "systemd").iterdir()}
    assert there == units(Service())


def test_the_times_of_a_stop_fit_each_other() -> None:
    """Whoever stops the server waits longer than it takes at most to answer what it accepted."""
    needed_s = Settings().stop_timeout_s + 5
    unit = (DEPLOY / "systemd/ramrack.service").read_text("utf-8")
    assert int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > needed_s
    pods = [d["spec"]["template"]["spec"] for d in kubernetes() if d["kind"] == "StatefulSet"]
    assert len(pods) == 1
    for pod in pods:
        sleep_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] > needed_s + sleep_s


def test_nginx_leaves_limits_and_errors_to_the_server() -> None:
    """Bodies go through as they come, and no request is sent twice."""
    text = (DEPLOY / "nginx/ramrack.conf").read_text("utf-8")
    assert f"server 127.0.0.1:{Settings().port};" in text
    for line in ("proxy_request_buffering off;", "proxy_buffering off;", "client_max_body_size 0;",
                 "proxy_next_upstream off;", "proxy_http_version 1.1;"):  # fmt: skip
        assert line in text
    assert str(Settings().admin_port) not in text
    kept_s = int(re.findall(r"keepalive_timeout (\d+)s", text)[0])
    assert kept_s < Settings().keep_alive_s


@pytest.mark.parametrize(
    "sent", ["7f1c", "a" * 128, "a" * 129, "order 7", "Straße", "tab\tbed", "~!", ""]
)
def test_nginx_passes_on_just_the_ids_that_the_server_takes(sent: str) -> None:
    """One rule in both: what nginx refuses it replaces, and the server would have as well."""
    text = (DEPLOY / "nginx/ramrack.conf").read_text("utf-8")
    (pattern, then) = re.findall(r'^    "~(\S+)" (\S+);$', text, re.MULTILINE)[0]
    assert (then, "X-Request-Id $ramrack_request_id;" in text) == ("$http_x_request_id", True)
    is_taken = request_id_of([(b"x-request-id", sent.encode())]) == sent
    assert bool(re.search(pattern, sent)) == is_taken


@pytest.mark.parametrize("container", containers(), ids=lambda c: c["name"])
def test_a_container_of_kubernetes_may_do_nothing_it_need_not(container: dict[str, Any]) -> None:
    """No root, nothing writable, no capabilities, bounds on memory, probes that ask the right."""
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    # A version that fails must never restart the server.
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert container["readinessProbe"]["httpGet"]["path"].endswith("/ready")
    known = {name.lower() for name in dir(Settings())} | {"admin_token"}
    for variable in container["env"]:
        assert variable["name"].removeprefix("RAMRACK_").lower() in known


def test_the_runtime_of_kserve_is_of_the_published_form() -> None:
    """The fields of serving.kserve.io/v1alpha1, and the names that KServe looks for."""
    (runtime,) = [d for d in kubernetes() if d["kind"] == "ServingRuntime"]
    assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1"
    spec = runtime["spec"]
    assert set(spec) <= {
        "annotations", "labels", "supportedModelFormats", "multiModel", "disabled",
        "protocolVersions", "containers", "volumes", "nodeSelector", "affinity", "tolerations",
        "imagePullSecrets", "hostIPC", "workerSpec", "storageHelper", "replicas", "builtInAdapter",
        "grpcEndpoint", "grpcDataEndpoint", "httpDataEndpoint",
    }  # fmt: skip
    for form in spec["supportedModelFormats"]:
        assert set(form) <= {"name", "version", "autoSelect", "priority"}
        assert isinstance(form["version"], str)
    assert spec["protocolVersions"] == ["v1", "v2"]
    (container,) = spec["containers"]
    assert container["name"] == "kserve-container"
    assert container["ports"][0]["containerPort"] == Settings().port
    assert "/mnt/models" in container["args"]
    assert spec["annotations"]["prometheus.kserve.io/port"] == str(Settings().admin_port)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_every_file_here_is_told_of() -> None:
    """docs/OPERATING.md names each folder and file that somebody would start with."""
    text = OPERATING.read_text("utf-8")
    for name in ("deploy/systemd", "deploy/compose.yaml", "deploy/nginx/ramrack.conf",
                 "deploy/kubernetes/ramrack.yaml", "deploy/kubernetes/kserve-runtime.yaml",
                 "deploy/prometheus/rules.yml", "deploy/prometheus/prometheus.yml",
                 "deploy/grafana", "Dockerfile"):  # fmt: skip
        assert name in text, name
        assert Path(ROOT / name).exists()
