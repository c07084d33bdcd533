"""Speaks the data plane of a running server: predictions, and what is needed to make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import httpx

from serving.client.connection import Document, Http, PlaneClient

DATA_URL: Final = "http://127.0.0.1:8080"
DATA_TOKEN_VARIABLE: Final = "RAMRACK_TOKEN"  # noqa: S105 - the variable's name


class DataClient(PlaneClient):
    """The data plane: predictions and what is needed to make one."""

    @classmethod
    def connect(
        cls,
        url: str = DATA_URL,
        token: str = "",
        *,
        before_request: Callable[[], None] | None = None,
    ) -> DataClient:
        """Return a client of the data plane at ``url``, as AdminClient.connect does."""
        return cls(
            Http(
                url,
                token,
                token_variable=DATA_TOKEN_VARIABLE,
                before_request=before_request,
                plane="data plane",
                address_from="--url or RAMRACK_URL",
            )
        )

    def metadata(self, name: str, selector: str = "") -> Document:
        """Return inputs and outputs of a version; ``selector``: number, alias or the route."""
        return self._get(_data_path(name, selector))

    def infer(
        self, name: str, selector: str, body: Document, routing_key: str = ""
    ) -> httpx.Response:
        """Predict in the V2 form; of a split, by the version that ``routing_key`` belongs to."""
        path = f"{_data_path(name, selector)}/infer"
        return self.http.call("POST", path, json=body, headers=_key(routing_key))

    def predict(
        self, name: str, selector: str, body: Document, routing_key: str = ""
    ) -> httpx.Response:
        """Predict in the V1 form, ``instances`` or ``inputs``; ``routing_key``: as in infer."""
        path = f"/v1/models/{quote(name, safe='')}"
        if selector:
            kind = "versions" if selector.isdigit() else "labels"
            path += f"/{kind}/{quote(selector, safe='')}"
        return self.http.call("POST", f"{path}:predict", json=body, headers=_key(routing_key))


def _key(routing_key: str) -> dict[str, str]:
    return {"x-routing-key": routing_key} if routing_key else {}


def _data_path(name: str, selector: str) -> str:
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(selector, safe='')}" if selector else path
