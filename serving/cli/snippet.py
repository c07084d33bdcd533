"""``ramrack snippet``: a first request to copy, made for the model's own inputs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from serving.cli.options import DATA_URL_DEFAULT, AsJson, DataUrl, Name, data_client
from serving.cli.output import print_json

_LANGUAGES = ("curl", "python", "java")


def snippet(
    name: Name,
    *,
    language: Annotated[
        str, typer.Option("--lang", metavar="LANGUAGE", help="curl, python or java.")
    ] = "curl",
    as_json: AsJson = False,
    url: DataUrl = DATA_URL_DEFAULT,
) -> None:
    """Print a request that can be copied and run."""
    if language not in _LANGUAGES:
        raise typer.BadParameter(f"--lang {language!r} is not one of {', '.join(_LANGUAGES)}")
    with data_client(url) as client:
        inputs = client.metadata(name)["inputs"]
    address = f"{url.rstrip('/')}/v2/models/{quote(name, safe='')}/infer"
    text = render(language, address, {"inputs": [_example(item) for item in inputs]})
    if as_json:
        print_json({"language": language, "snippet": text})
    else:
        print(text)


def render(language: str, address: str, body: Mapping[str, Any]) -> str:
    """Return the program text that posts ``body`` to ``address``."""
    text = json.dumps(body)
    if language == "curl":
        return f"curl -s {shlex.quote(address)} -d {shlex.quote(text)}"
    if language == "python":
        return (
            "import json, urllib.request\n\n"
            f"body = json.dumps({dict(body)!r}).encode()\n"
            f"with urllib.request.urlopen({address!r}, body) as answer:\n"
            "    print(json.load(answer))"
        )
    return (
        "import java.net.URI;\n"
        "import java.net.http.*;\n\n"
        "public class Predict {\n"
        "    public static void main(String[] args) throws Exception {\n"
        f"        var body = {json.dumps(text)};\n"
        f"        var request = HttpRequest.newBuilder(URI.create({json.dumps(address)}))\n"
        "            .POST(HttpRequest.BodyPublishers.ofString(body)).build();\n"
        "        var answer = HttpClient.newHttpClient()\n"
        "            .send(request, HttpResponse.BodyHandlers.ofString());\n"
        "        System.out.println(answer.body());\n"
        "    }\n"
        "}"
    )


def _example(item: Mapping[str, Any]) -> dict[str, Any]:
    shape = [size if size > 0 else 1 for size in item["shape"]]
    return {
        "name": item["name"],
        "datatype": item["datatype"],
        "shape": shape,
        "data": _values(item["datatype"], shape),
    }


def _values(datatype: str, shape: Sequence[int]) -> list[Any]:
    count = 1
    for size in shape:
        count *= size
    one: object = 0.5 if datatype.startswith("FP") else 1
    if datatype == "BYTES":
        one = "text"
    if datatype == "BOOL":
        one = True
    return [one] * count
