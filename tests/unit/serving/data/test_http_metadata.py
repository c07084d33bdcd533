"""What the data plane tells of its server and its models, and of itself."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from models.signature import Signature, TensorSpec
from registry.lifecycle import State
from serving.settings import Settings
from tests.unit.serving.data.http_calls import INFER, v2
from tests.unit.serving.data.rig import Plane, small


async def test_the_server_names_only_what_works(client: httpx.AsyncClient) -> None:
    """Load generators read the extensions and poll what is there."""
    document = (await client.get("/v2")).json()
    assert document["name"] == "ramrack"
    assert set(document["extensions"]) == {
        "binary_tensor_data", "classification", "model_configuration", "parameters", "statistics",
    }  # fmt: skip


async def test_ready_waits_for_the_restore_and_lists_what_failed(
    plane: Plane, client: httpx.AsyncClient
) -> None:
    """E07: 503 with the reason until what was loaded is back; a FAILED version is listed."""
    plane.is_restored = False
    plane.publish()
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    response = await client.get("/v2/health/ready")
    assert response.status_code == 503
    assert "being restored" in response.json()["error"]
    plane.is_restored = True
    plane.add_known("other", 1, State.FAILED, "operator Foo does not exist")
    response = await client.get("/v2/health/ready")
    assert (response.status_code, response.json()) == (
        200,
        {
            "ready": True,
            "failed": [{"model": "other", "version": 1, "reason": "operator Foo does not exist"}],
        },
    )


class TestReadyRequiresAll:
    """With ready_requires = "all"."""

    @pytest.fixture
    def settings(self) -> Settings:
        return small(Settings(), ready_requires="all")

    async def test_a_failed_version_makes_it_unready(
        self, plane: Plane, client: httpx.AsyncClient
    ) -> None:
        """Who wants that can have it."""
        plane.add_known("other", 1, State.FAILED, "broken")
        response = await client.get("/v2/health/ready")
        assert response.status_code == 503
        assert response.json()["error"] == "1 versions FAILED and ready_requires is 'all'"


async def test_metadata_and_config_of_a_version(plane: Plane, client: httpx.AsyncClient) -> None:
    """Shapes are whole in both, so the batch size is 0; what the signature knows more is told."""
    signature = Signature(
        (TensorSpec("x", "FP32", (-1, 4), columns=("a", "b", "c", "d")),),
        (TensorSpec("label", "BYTES", (-1,), labels=("no", "yes")),),
    )
    plane.add_known("fraud", 9, State.UNLOADED, "never loaded")
    plane.add(version=2)
    plane.add(version=10, signature=signature)
    document = (await client.get("/v2/models/fraud")).json()
    assert document == {
        "name": "fraud",
        "versions": ["2", "10"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 4], "columns": ["a", "b", "c", "d"]}
        ],
        "outputs": [{"name": "label", "datatype": "BYTES", "shape": [-1], "labels": ["no", "yes"]}],
    }
    config = (await client.get("/v2/models/fraud/versions/10/config")).json()
    assert config["max_batch_size"] == 0
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}]
    assert config["output"] == [{"name": "label", "data_type": "TYPE_STRING", "dims": [-1]}]


async def test_lists_states_and_readiness(plane: Plane, client: httpx.AsyncClient) -> None:
    """Index, list, model readiness and the V1 status all see the same state."""
    plane.add_known("fraud", 4, State.LOADING, "loading")
    plane.add_known("other", 1, State.FAILED, "broken")
    plane.add(version=3)
    assert (await client.get("/v2/models")).json() == {"models": ["fraud", "other"]}
    index = [
        {"name": "fraud", "version": "3", "state": "READY", "reason": "loaded"},
        {
            "name": "fraud",
            "version": "4",
            "state": "LOADING",
            "reason": "loading",
        },
        {"name": "other", "version": "1", "state": "UNAVAILABLE", "reason": "broken"},
    ]
    assert (await client.post("/v2/repository/index")).json() == index
    assert (await client.post("/v2/repository/index", json={})).json() == index
    ready = await client.post("/v2/repository/index", json={"ready": True})
    assert ready.json() == index[:1]
    assert (await client.get("/v2/models/fraud/ready")).json() == {"name": "fraud", "ready": True}
    assert (await client.get("/v2/models/fraud/versions/4/ready")).status_code == 503
    status = (await client.get("/v1/models/fraud")).json()
    assert (status["name"], status["ready"]) == ("fraud", True)
    assert [(v["version"], v["state"]) for v in status["model_version_status"]] == [
        ("3", "AVAILABLE"), ("4", "LOADING"),
    ]  # fmt: skip
    failed = (await client.get("/v1/models/other")).json()["model_version_status"][0]
    assert failed["status"] == {"error_code": "INTERNAL", "error_message": "broken"}


async def test_statistics_count_rows_and_runs(plane: Plane, client: httpx.AsyncClient) -> None:
    """The three paths of the statistics extension agree, and all fields are unsigned integers."""
    plane.add()
    for _ in range(3):
        await client.post(INFER, json=v2(1, 2))
    await client.post(INFER, json={"inputs": []})
    for path in ("/v2/models/stats", "/v2/models/fraud/stats", "/v2/models/fraud/versions/3/stats"):
        stats = (await client.get(path)).json()["model_stats"]
        assert [(s["name"], s["version"]) for s in stats] == [("fraud", "3")]
        assert (stats[0]["inference_count"], stats[0]["execution_count"]) == (6, 3)
        numbers = stats[0]["inference_stats"]
        assert (numbers["success"]["count"], numbers["fail"]["count"]) == (3, 1)
        assert min(value for part in numbers.values() for value in part.values()) >= 0


async def test_the_top_leads_to_api_and_documentation(client: httpx.AsyncClient) -> None:
    """Who opens the bare address is told where to go on, and both places are there."""
    answer = await client.get("/")
    assert answer.status_code == 200
    assert (answer.json()["api"], answer.json()["docs"]) == ("/v2", "/docs")
    for path in (answer.json()["api"], answer.json()["docs"]):
        assert (await client.get(path)).status_code == 200


async def test_the_docs_page_needs_no_other_host(client: httpx.AsyncClient) -> None:
    """Every address in the page is this server's, and what it names is there."""
    page = (await client.get("/docs")).text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    assert all(address.startswith("/") for address in addresses)
    assert "://" not in page
    for address in addresses:
        assert (await client.get(address)).status_code == 200


async def test_the_openapi_document_is_complete(plane: Plane, client: httpx.AsyncClient) -> None:
    """Every route is in it, every reference resolves, and nothing is named that never happens."""
    document = (await client.get("/openapi.json")).json()
    paths = {
        re.sub(r":segment}", "}", route.path)
        for route in plane.app.routes
        if getattr(route, "include_in_schema", False) and hasattr(route, "methods")
    }
    assert set(document["paths"]) == paths
    assert len(paths) == 27
    names = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert names <= set(document["components"]["schemas"])
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert {"405", "431", "500"} <= set(operation["responses"])
            named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
    codes = set(document["paths"]["/v2/models/{model}/infer"]["post"]["responses"])
    assert codes == {
        "200", "400", "404", "405", "408", "413", "415", "429", "431", "500", "503", "504",
    }  # fmt: skip
