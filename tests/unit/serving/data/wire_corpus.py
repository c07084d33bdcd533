"""Requests as bytes, good and bad: a corpus by hand, and a generator that any seed repeats."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from dataclasses import dataclass

import numpy as np

TOKEN = "secret-app"
MAX_BODY_BYTES = 20_000


@dataclass(frozen=True)
class Case:
    """What a client sends, in pieces if ``piece_bytes`` is not 0.

    ``is_cut``: the end is missing, and the client ends its side.
    """

    name: str
    data: bytes
    is_cut: bool = False
    piece_bytes: int = 0


def _v2(rows: int = 1, **more: object) -> bytes:
    data = [float(i) for i in range(4 * rows)]
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": data}
    return json.dumps({"inputs": [tensor], **more}).encode()


def _binary(size: int, announced: int) -> tuple[bytes, int]:
    parameters = {"binary_data_size": announced}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": parameters}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + np.arange(4, dtype="<f4").tobytes()[:size], len(head)


V1 = json.dumps({"instances": [[1, 2, 3, 4]]}).encode()
BINARY, JSON_LENGTH = _binary(16, 16)
BODIES = {
    "v2": _v2(),
    "v2 with an id": _v2(id="a-1"),
    "v2 of many rows": _v2(60),
    "v1": V1,
    "v1 by column": json.dumps({"inputs": [[1, 2, 3, 4]]}).encode(),
    "v1 of many rows": json.dumps({"instances": [[1, 2, 3, 4]] * 200}).encode(),
    "a data frame": b'{"dataframe_split": {"columns": [0, 1, 2, 3], "data": [[1, 2, 3, 4]]}}',
    "with params": b'{"inputs": [[1, 2, 3, 4]], "params": {"output": "y"}}',
    "with other params": b'{"inputs": [[1, 2, 3, 4]], "params": {"top_k": 3}}',
    "csv": b"a,b,c,d\n1,2,,4\n",
    "empty": b"",
    "no json": b"{",
    "not an object": b"[1]",
    "a bare nan": b'{"instances": [[NaN, 2, 3, 4]]}',
    "a wrong column count": b'{"instances": [[1, 2]]}',
    "a wrong name": _v2().replace(b'"x"', b'"z"'),
    "a wrong datatype": _v2().replace(b"FP32", b"INT64"),
    "deep": b'{"instances": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    "not utf-8": b'{"instances": "\xff"}',
    "over the limit": b" " * MAX_BODY_BYTES + _v2(),
    "at the limit": b" " * (MAX_BODY_BYTES - len(_v2())) + _v2(),
    "binary": BINARY,
    "binary, cut": _binary(15, 16)[0],
    "binary, of another size": _binary(16, 12)[0],
}
ENCODED = {
    "gzip": ("gzip", gzip.compress(_v2(), mtime=0)),
    "deflate": ("deflate", zlib.compress(_v2())),
    "raw deflate": ("deflate", zlib.compress(_v2())[2:-4]),
    "x-gzip": ("X-GZIP", gzip.compress(V1, mtime=0)),
    "cut gzip": ("gzip", gzip.compress(_v2(), mtime=0)[:-9]),
    "gzip that unfolds too far": ("gzip", gzip.compress(b" " * 100_000, mtime=0)),
    "gzip in two members": ("gzip", gzip.compress(b" ", mtime=0) + gzip.compress(V1, mtime=0)),
    "heavy gzip": ("gzip", gzip.compress(random.Random(4).randbytes(9_000), mtime=0)),
    "no gzip": ("gzip", V1),
    "identity": ("identity", V1),
    "brotli": ("br", V1),
    "two codings": ("gzip, deflate", V1),
    "none named": ("", V1),
}
PATHS = [
    "/v2/models/fraud/infer",
    "/v2/models/fraud/versions/3/infer",
    "/v2/models/fraud/versions/stable/infer",
    "/v2/models/fraud/versions/latest/infer",
    "/v1/models/fraud:predict",
    "/v1/models/fraud/versions/3:predict",
    "/v1/models/fraud/labels/stable:predict",
    "/v1/models/fraud/invocations",
    "/v1/models/fraud/versions/3/invocations",
    "/v1/models/fraud/labels/stable/invocations",
    "/invocations",
]
ODD_PATHS = [
    "/v2/models/frau%64/infer", "/v2/models/fraud/infer?x=1&y", "/v2/models/fraud/infer#part",
    "/v2/models/fraud%2Finfer", "/v2/models/%2e%2e/infer", "/v2/models/../fraud/infer",
    "/v2/models/fraud/infer/", "/v2//models/fraud/infer", "/v2/models/fraud/infer%0A",
    "/v2/models/%00/infer", "/v2/models/%ff/infer", "/v2/models/caf%C3%A9/infer",
    "/v2/models/fr%zzaud/infer", "/v2/models/a:b/infer", "/v2/models//infer",
    "/v2/models/" + "m" * 300 + "/infer", "/v2/models/none/infer", "/v2/models/stats/infer",
    "/v2/models/sleeping/infer", "/v2/models/sleeping/versions/1/infer", "/v2/models/fraud/Infer",
    "/v2/models/fraud/versions/9/infer", "/v2/models/fraud/versions/0/infer",
    "/v2/models/fraud/versions/007/infer", "/v2/models/fraud/versions/UP/infer",
    "/v2/models/fraud/versions/99999999999999999999/infer", "/v2/models/fraud/versions//infer",
    "/v1/models/fraud/labels/3:predict", "/v1/models/fraud/versions/x:predict",
    "/v1/models/fraud:predict%0a", "/v1/models/fraud%3Apredict", "/v1/models/fraud:predic",
    "/v1/models/:predict", "/v1/models/fraud:predict:predict", "/v1/models/fraud",
    "http://other.example/v2/models/fraud/infer", "http://u:p@h:9/v1/models/fraud:predict?q",
    "http://other.example?q",
    "https:/v2/models/fraud/infer", "//h/v2/models/fraud/infer", "/v2/health/live", "/v2", "/",
    "/v2/repository/index", "*", "v2/models/fraud/infer", "/v2/models/fraud/infer\x7f",
    "/v2/models/fr\xe9ud/infer", "/invocations/", "/invocations?x=1", "/v1/models//invocations",
    "/v1/models/fraud/versions/x/invocations", "/v1/models/none/invocations", "/ping", "/health",
]  # fmt: skip
HEADERS = [
    "Content-Type: application/json", "Content-Type: application/json; charset=utf-8",
    "Content-Type: application/json;charset=latin-1", "Content-Type: text/html",
    "Content-Type: APPLICATION/vnd.x+JSON", "Content-Type:", "Content-Type: \xe9",
    "Content-Type: application/json\r\nContent-Type: text/html",
    "Accept-Encoding: gzip", "Accept-Encoding: deflate;q=0.5, *;q=0", "Accept-Encoding: br",
    "Connection: close", "Connection: Keep-Alive", "Connection: keep-alive, close",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB",
    "Connection: upgrade\r\nUpgrade: websocket", "Upgrade: h2c", "Expect: 100-continue",
    "Expect: 100-Continue", "Expect: 200-ok", "Expect:", "X-Request-Id: r-1",
    "X-Request-Id: r 1", "X-Request-Id: " + "r" * 129, "X-Request-Id: a\r\nX-Request-Id: b",
    "X-Request-Timeout-Ms: 60000", "X-Request-Timeout-Ms: 0", "X-Request-Timeout-Ms: soon",
    "X-Request-Timeout-Ms: 60000\r\nX-Request-Timeout-Ms: 60000",
    f"Inference-Header-Content-Length: {JSON_LENGTH}", "Inference-Header-Content-Length: 0",
    "Inference-Header-Content-Length: 99999", "Inference-Header-Content-Length: -1",
    "Authorization: Bearer nobody", "Authorization: Basic eDp5", "Authorization:",
    f"Authorization: Bearer {TOKEN}", "Authorization: bearer secret-ci",
    f"Authorization: Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}",
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Host: other",
    "X-Long: " + "a" * 15_000, "X-Long: " + "a" * 17_000, "X: a\x00b", "X : a", "X: a\r\n b",
    "X: a\nY: b", ": a", "no colon", "X: \xff", "\r\nX: y", "Transfer-Encoding: identity",
    "Content-Length: 3", "Content-Length: +3", "TE: trailers", "Cookie: a=b; c=d", "X:", "x:y",
    "Content-Type: text/csv", "Content-Type: Text/CSV; charset=utf-8",
]  # fmt: skip
VERBS = ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "post", "BREW"]
VERSIONS = ["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 ", "HTTP/11", "ICY/1.1", ""]
FRAMINGS = ["length", "length", "length", "chunked", "chunked", "many chunks", "extension"]
BAD_FRAMINGS = [
    "both", "length twice", "two lengths", "plus", "space inside", "hex", "minus", "huge", "list",
    "chunk of bad size", "chunk of huge size", "chunk too short", "chunked twice", "trailer",
    "lf chunk", "none", "spaces around", "long extension", "chunked then coding", "short",
]  # fmt: skip
CUT_FRAMINGS = ["long", "no last chunk", "half a head", "half a chunk"]


def framed(framing: str, body: bytes) -> tuple[list[str], bytes]:
    """Return the header lines that announce a body, and the body as it is sent."""
    size = len(body)
    chunked, length = ["Transfer-Encoding: chunked"], [f"Content-Length: {size}"]
    chunk, end = b"%x\r\n%b\r\n" % (size, body) if body else b"", b"0\r\n\r\n"
    cuts = range(0, size, 7)
    many = b"".join(b"%X\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in cuts)
    forms: dict[str, tuple[list[str], bytes]] = {
        "length": (length, body),
        "chunked": (chunked, chunk + end),
        "many chunks": (chunked, many + end),
        "extension": (chunked, b'%x;a=b;c="d"\r\n%b\r\n' % (size, body) + end if body else end),
        "long extension": (chunked, b"%x;%b\r\n" % (size, b"a" * 20_000) + body + b"\r\n" + end),
        "both": (length + chunked, chunk + end),
        "length twice": (length + length, body),
        "two lengths": ([*length, f"Content-Length: {size + 1}"], body),
        "plus": ([f"Content-Length: +{size}"], body),
        "minus": ([f"Content-Length: -{size}"], body),
        "space inside": ([f"Content-Length: {size} {size}"], body),
        "spaces around": ([f"Content-Length:  \t{size}  "], body),
        "hex": ([f"Content-Length: 0x{size:x}"], body),
        "list": ([f"Content-Length: {size}, {size}"], body),
        "huge": ([f"Content-Length: {10**30}"], body),
        "chunk of bad size": (chunked, b"zz\r\n" + body + b"\r\n" + end),
        "chunk of huge size": (chunked, b"f" * 40 + b"\r\n" + body),
        "chunk too short": (chunked, b"%x\r\n%bx\r\n" % (size, body) + end),
        "chunked twice": (["Transfer-Encoding: chunked, chunked"], chunk + end),
        "chunked then coding": (["Transfer-Encoding: chunked, gzip"], chunk + end),
        "trailer": (chunked, chunk + b"0\r\nX-Late: 1\r\nContent-Length: 5\r\n\r\n"),
        "lf chunk": (chunked, chunk.replace(b"\r\n", b"\n") + end),
        "none": ([], body),
        "short": ([f"Content-Length: {max(size - 3, 0)}"], body),
        "long": ([f"Content-Length: {size + 5}"], body),
        "no last chunk": (chunked, chunk),
        "half a chunk": (chunked, chunk[: size // 2]),
        "half a head": (length, body),
    }
    return forms[framing]


def request(
    path: str = PATHS[0], body: bytes = BODIES["v2"], *headers: str,
    verb: str = "POST", version: str = "HTTP/1.1", framing: str = "length", host: str = "Host: h",
) -> bytes:  # fmt: skip
    """Return a request's bytes; texts are latin-1."""
    lines, sent = framed(framing, body)
    head = [f"{verb} {path} {version}", *([host] if host else []), *headers, *lines, "", ""]
    data = "\r\n".join(head).encode("latin-1")
    return data[: len(data) // 2] if framing == "half a head" else data + sent


def corpus() -> list[Case]:
    """Return each oddity alone, on a request that is good otherwise, and pipelines of some."""
    good = request()
    cases = [Case(f"path {path!r}", request(path)) for path in PATHS + ODD_PATHS]
    cases += [Case(f"v1 body, path {path!r}", request(path, V1)) for path in PATHS[4:]]
    cases += [
        Case(f"body {name!r}, path {path!r}, {line!r}", request(path, body, line))
        for name, body in BODIES.items()
        for path, line in (
            (PATHS[7], HEADERS[0]),
            (PATHS[8], HEADERS[-2]),
            (PATHS[10], HEADERS[-1]),
        )
    ]
    cases += [Case(f"body {name!r}", request(body=body)) for name, body in BODIES.items()]
    cases += [
        Case(f"binary body {name!r}", request(PATHS[0], BODIES[name], HEADERS[29]))
        for name in ("binary", "binary, cut", "binary, of another size", "v2")
    ]
    cases += [
        Case(f"coding {name!r} as {framing}", request(
            PATHS[4] if b"instances" in body else PATHS[0], body, f"Content-Encoding: {coding}",
            framing=framing,
        ))
        for name, (coding, body) in ENCODED.items() for framing in ("length", "many chunks")
    ]  # fmt: skip
    cases += [Case(f"header {line[:60]!r}", request(PATHS[0], _v2(60), line)) for line in HEADERS]
    cases += [Case(f"verb {verb}", request(verb=verb)) for verb in VERBS]
    cases += [Case(f"verb {verb} for v1", request(PATHS[4], V1, verb=verb)) for verb in VERBS]
    cases += [Case(f"version {version!r}", request(version=version)) for version in VERSIONS]
    cases += [
        Case(f"framing {name!r}", request(framing=name)) for name in (*FRAMINGS, *BAD_FRAMINGS)
    ]
    cases += [
        Case(f"over the limit, {name}", request(body=BODIES["over the limit"], framing=name))
        for name in ("length", "chunked", "many chunks")
    ]
    cases += [Case(f"cut: {name!r}", request(framing=name), is_cut=True) for name in CUT_FRAMINGS]
    cases += [
        Case("no host", request(host="")),
        Case("no host in HTTP/1.0", request(host="", version="HTTP/1.0")),
        Case("kept alive in HTTP/1.0", request(
            PATHS[0], BODIES["v2"], "Connection: keep-alive", version="HTTP/1.0"
        )),
        Case("an empty host", request(host="Host:")),
        Case("bare line feeds", good.replace(b"\r\n", b"\n")),
        Case("line ends before", b"\r\n\r\n" + good),
        Case("three in one packet", good * 3),
        Case("the other path between", good + request("/v2") + request(PATHS[4], V1) + good),
        Case("nothing good after", good + b"\x00\x01\r\n\r\n"),
        Case("more after close", request(PATHS[0], BODIES["v2"], "Connection: close") + good),
        Case("refused, then good", request(PATHS[0], b"{") + good),
        Case("a refused type, then good", request(PATHS[0], b"x", "Content-Type: a/b") + good),
        Case("good, then a broken body", good + request(framing="chunk of bad size")),
        Case("many in one packet", good * 200),
        Case("offers among others", (
            good + request(PATHS[0], BODIES["v2"], HEADERS[14]) + request("/v2") + good
        )),
        Case("a whole one, then half", good + request(framing="half a head"), is_cut=True),
        Case("a whole one, its side ended", good, is_cut=True),
        Case("three, the side ended", good * 3, is_cut=True),
        Case("nothing", b"", is_cut=True),
    ]  # fmt: skip
    return cases


def generated(seed: int, count: int, behind: float = 0.2) -> list[Case]:
    """Return ``count`` requests of oddities mixed, each with few enough to get past the parser.

    ``behind``: the share of them that comes behind a good one in the same packet.
    """
    dice = random.Random(seed)
    cases = []
    for number in range(count):
        path = dice.choice(PATHS if dice.random() < 0.7 else ODD_PATHS)
        headers = [dice.choice(HEADERS) for _ in range(dice.choice((0, 1, 1, 2, 3)))]
        if dice.random() < 0.2:
            coding, body = dice.choice(list(ENCODED.values()))
            headers.append(f"Content-Encoding: {coding}")
        else:
            body = dice.choice(list(BODIES.values()))
            if dice.random() < 0.5:
                body = V1 if path.startswith("/v1") else BODIES["v2"]
        is_cut = dice.random() < 0.05
        framing = dice.choice(BAD_FRAMINGS if dice.random() < 0.15 else FRAMINGS)
        data = request(
            path, body, *headers,
            verb=dice.choice(VERBS) if dice.random() < 0.08 else "POST",
            version=dice.choice(VERSIONS) if dice.random() < 0.05 else "HTTP/1.1",
            framing=dice.choice(CUT_FRAMINGS) if is_cut else framing,
            host="" if dice.random() < 0.03 else "Host: h",
        )  # fmt: skip
        if dice.random() < behind:
            data = request(PATHS[4], V1) + data
        if dice.random() < 0.05 and len(data) > 40:
            at = dice.randrange(len(data))
            data = data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
        cases.append(Case(f"generated {number}", data, is_cut=is_cut))
    return cases
