"""Threats, the defence against each, and the tests that attack it: ``scripts/threats`` prints them.

``seen_red``: what was taken out of the defence to see the tests fail, and what they said then.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_PLANES: Final = "tests/threat/test_planes.py"
_MODELS: Final = "tests/threat/test_models.py"
_REQUESTS: Final = "tests/threat/test_requests.py"
_CONFINED: Final = "tests/unit/models/test_confinement.py"
_CASES: Final = "tests/cases/test_case_f.py"
_LIMITS: Final = "tests/cases/test_case_limits.py"


@dataclass(frozen=True, slots=True)
class Threat:
    """One row. ``slug``: what names of its tests hold; ``defences``: files of the product.

    ``tests``: ``file::prefix``, every test of the file whose name begins so.
    """

    name: str
    slug: str
    sent: str
    defences: tuple[str, ...]
    tests: tuple[str, ...]
    seen_red: str


THREATS: Final = (
    Threat(
        "open admin plane", "open_admin_plane", "load, delete, without or with a wrong token",
        ("serving/auth.py", "serving/admin/guard.py", "serving/data/guard.py"),
        (f"{_PLANES}::test_open_admin_plane", f"{_CASES}::test_f02",
         "tests/unit/serving/admin/test_auth.py::test_address_beyond_loopback"),
        "the scope check passed everyone: 400 instead of 403; the guard took anyone for the "
        "owner: 400 instead of 401; the last of two Authorization lines counted: 200 instead "
        "of 401; any address without a token: DID NOT RAISE; hashes compared with ==, or not "
        "to the last one: other calls of compare_digest; the door of the lane, of the "
        "application or of heads that came before left out: 404 or 200 instead of 401; the "
        "data plane took any scope: 200 instead of 403; Host or Origin not looked at: 200 "
        "instead of 403; the plane's own documents without a scope: 200 instead of 403",
    ),
    Threat(
        "SSRF", "ssrf", "URLs wherever a name, a digest or a reason goes",
        ("serving/admin/request.py", "registry/ident.py", "models/graph_check.py"),
        (f"{_PLANES}::test_ssrf", f"{_LIMITS}::test_f01", f"{_LIMITS}::test_f04"),
        "check_digest opened what begins with http: the canary was called; unknown fields or "
        "query parameters taken: 200 instead of 400",
    ),
    Threat(
        "pickle", "pickle", "pickles and object arrays as body, object, model file, sample",
        ("models/graph_check.py", "serving/data/body.py", "models/convert/detect.py"),
        (f"{_CASES}::test_f08", "tests/threat/test_no_pickle.py::test_pickle"),
        "parse_graph, the parser of bodies or the reader of samples opened pickles: the canary's "
        "folder was there",
    ),
    Threat(
        "external data escape", "external_data_escape",
        "paths, links and odd fields in each place a tensor can stand in",
        ("models/graph_check.py", "models/graph_walk.py"),
        (f"{_MODELS}::test_external_data_escape", f"{_CASES}::test_f05", f"{_CASES}::test_f07"),
        "the walk passed over each of its places in turn, the check took any location, other "
        "fields, numbers of any form, a length unlike the shape, an end past the object, or "
        "data in the object outside of initializers: DID NOT RAISE LoadFailed, each time",
    ),
    Threat(
        "model bomb", "model_bomb",
        "terabytes by shape or constant, functions that double or recurse, threads, libraries",
        ("models/inspect.py", "models/inspect_child.py", "models/graph_functions.py",
         "models/signature.py", "serving/workers/worker_process.py"),
        (f"{_MODELS}::test_model_bomb", f"{_CASES}::test_f11",
         "tests/unit/models/test_inspect.py::test_f11"),
        "functions not checked: the load ran into its time limit; functions that call "
        "themselves, or operators of any domain taken: refused by the runtime only, in other "
        "words; no limit of time: the test's wait ended; the variable kept in the "
        "workers' environment: found there; no bound on a dimension: published with 201. "
        "RLIMIT_DATA alone left out stays green, for the parent watches the child's memory as "
        "well",
    ),
    Threat(
        "huge output from a tiny request", "huge_output", "a number that becomes a size",
        ("serving/data/request.py", "serving/workers/private_memory.py"),
        (f"{_REQUESTS}::test_huge_output", "tests/threat/test_run_memory.py::test_huge_output"),
        "max_output_bytes not asked: 200 with a megabyte; RLIMIT_DATA not set: 504, with "
        "gigabytes held",
    ),
    Threat(
        "JSON depth, size", "json_depth_and_size", "a million brackets",
        ("serving/codec/parse.py", "serving/codec/limits.py", "serving/data/body.py"),
        (f"{_REQUESTS}::test_json_depth_and_size",),
        "bodies parsed by the standard library: an unplanned error in the log; max_nesting of "
        "100,000: another message, about the shape",
    ),
    Threat(
        "shape tricks", "shape_tricks", "overflow, signs, zeros, mismatch, other types",
        ("serving/codec/shapes.py", "serving/codec/limits.py"),
        (f"{_REQUESTS}::test_shape_tricks",),
        "the declared shape not compared: an unplanned error in the log, of the run that took "
        "it. Negative sizes taken stays green: the elements are counted as well",
    ),
    Threat(
        "decompression bomb", "decompression_bomb",
        "a thousandfold, gzip in gzip, many members, truncated, never ended",
        ("serving/codec/encoding.py", "serving/data/body.py"),
        (f"{_REQUESTS}::test_decompression_bomb", f"{_LIMITS}::test_f10", f"{_LIMITS}::test_e11"),
        "the decoder's cap left out: 429 instead of 413; what was decoded not counted: all "
        "sixty bodies were taken in",
    ),
    Threat(
        "binary split", "binary_split", "negative, overlapping, trailing, past the body",
        ("serving/codec/v2.py", "serving/codec/binary.py"),
        (f"{_REQUESTS}::test_binary_split",),
        "bytes left after the tensors not counted: 200 instead of 400; a length past the "
        "body taken: 200; a tensor's bytes not held against its shape: an unplanned error in "
        "the log",
    ),
    Threat(
        "smuggling, odd headers", "smuggling",
        "length and coding, bare line ends, two hosts, huge headers",
        ("serving/web/parsing.py",),
        (f"{_REQUESTS}::test_smuggling",),
        "codings not checked: the connection stayed open after a 200 to gzip, chunked; two "
        "hosts taken, or the parser's leniencies on: it stayed open",
    ),
    Threat(
        "slow clients", "slow_clients", "a byte now and then; answers that nobody reads",
        ("serving/web/timed.py", "serving/web/deadlines.py", "serving/data/lane.py"),
        (f"{_REQUESTS}::test_slow_clients",),
        "deadlines a million seconds later, or none for the first head, a later one, or the body: "
        "it never hung up",
    ),
    Threat(
        "label cardinality", "label_cardinality", "random paths, names, verbs, ids",
        ("serving/metrics/page.py", "serving/data/data_plane.py"),
        (f"{_REQUESTS}::test_label_cardinality", "tests/cases/test_case_e.py::test_e05"),
        "the count put into the label of unknown requests: new series in the second scan",
    ),
    Threat(
        "NaN in one row", "nan_in_one_row", "NaN and infinity beside other rows",
        ("models/probe.py", "serving/data/batch_run.py"),
        (f"{_REQUESTS}::test_nan_in_one_row",),
        "nan_to_num on the way in: other bits came back",
    ),
    Threat(
        "names", "names", "dots, NUL, line ends, look-alikes, percent-encoded",
        ("registry/ident.py", "serving/web/head.py"),
        (f"{_PLANES}::test_names", f"{_CASES}::test_a_name_that_is_a_path"),
        "aliases not checked: PUT of the alias .. was a 200",
    ),
    Threat(
        "errors and logs", "nothing_given_away", "tokens, payloads, line ends",
        ("serving/errors.py", "serving/logs.py", "models/runtime/ort_errors.py"),
        (f"{_PLANES}::test_nothing_given_away",),
        "the message of a wrong token named it: found in the answer; the path written as a "
        "line of its own: the faked record was in the log",
    ),
    Threat(
        "a process that was taken over", "least_privilege",
        "what an inspection or a worker could reach",
        ("models/confinement.py", "models/syscall_filter.py", "models/inspect_child.py"),
        (f"{_CONFINED}::test_least_privilege", f"{_MODELS}::test_least_privilege"),
        "leave_network, gain_nothing, stay_alone, the limit on files, on open ones, on core files "
        "or on processor time left out, or the parent's environment handed down: seen in /proc of "
        "the inspection; signals not filtered: they were sent; a worker with a file of the store "
        "open to write: seen in its fdinfo",
    ),
)  # fmt: skip


@cache
def names_in(file: str) -> tuple[str, ...]:
    """Return the names of the tests of a file; none where there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return ()
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(path.read_text("utf-8"))
    return tuple(
        node.name for node in ast.walk(tree)
        if isinstance(node, kinds) and node.name.startswith("test_")
    )  # fmt: skip


def found(test: str) -> list[str]:
    """Return the node ids that ``file::prefix`` stands for."""
    file, _, prefix = test.partition("::")
    return [f"{file}::{name}" for name in names_in(file) if name.startswith(prefix)]


def missing(threats: Iterable[Threat]) -> list[str]:
    """Return what a table lacks: a line for each test, defence or note that is not there."""
    wrong: list[str] = []
    for threat in threats:
        nodes = [node for test in threat.tests for node in found(test)]
        wrong += [f"{threat.name}: no test {test}" for test in threat.tests if not found(test)]
        if not any(threat.slug in node for node in nodes):
            wrong.append(f"{threat.name}: no test is named after {threat.slug!r}")
        if not threat.defences:
            wrong.append(f"{threat.name}: no defence")
        wrong += [
            f"{threat.name}: no file {path}"
            for path in threat.defences if not (ROOT / path).is_file()
        ]  # fmt: skip
        if not threat.seen_red:
            wrong.append(f"{threat.name}: nobody saw its tests fail")
    return wrong


def lines(threats: Iterable[Threat]) -> Iterable[str]:
    """Yield the table as text: row > test > defence."""
    for threat in threats:
        yield f"{threat.name}: {threat.sent}"
        yield from (f"  > {node}" for test in threat.tests for node in found(test))
        yield f"  > defence: {', '.join(threat.defences)}"
        yield f"  > seen red: {threat.seen_red}"


def main(threats: Sequence[Threat] = THREATS) -> int:
    """Print the table; return 1 where something of it is missing."""
    for line in lines(threats):
        sys.stdout.write(line + "\n")
    wrong = missing(threats)
    for line in wrong:
        sys.stderr.write(f"missing: {line}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
