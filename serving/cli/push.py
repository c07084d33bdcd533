"""``ramrack push``: converts on this side, sends what the server lacks, registers the version."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.ident import shown
from registry.traffic import Traffic
from serving.cli.interrupt import INTERRUPT
from serving.cli.options import (
    ADMIN_URL_DEFAULT,
    CONVERT_TIMEOUT_S,
    AdminUrl,
    AsJson,
    ConvertTimeout,
    Name,
    Reason,
    admin_client,
)
from serving.cli.output import (
    bar,
    count_text,
    note,
    operation_progress,
    print_json,
    size_text,
    working,
)
from serving.cli.values import alias_name, real
from serving.client.errors import ClientError

if TYPE_CHECKING:
    from models.convert import ConvertOptions
    from models.package import Package
    from registry.manifest import JsonObject
    from serving.client.admin import AdminClient
    from serving.client.push import PushResult


def _format_name(text: str) -> str:
    from models.convert.detect import FORMATS

    if text not in FORMATS:
        raise typer.BadParameter(f"{shown(text)} is not one of {', '.join(FORMATS)}")
    return text


def _mode_name(text: str) -> str:
    from models.convert.quantize import MODES

    if text not in MODES:
        raise typer.BadParameter(f"{shown(text)} is not one of {', '.join(MODES)}")
    return text


def _runtime_name(text: str) -> str:
    if text not in ("auto", "onnx", "native", "openvino"):
        raise typer.BadParameter(f"{shown(text)} is not one of auto, onnx, native, openvino")
    return text


def _goal_name(text: str) -> str:
    if text != "speed":
        raise typer.BadParameter(f"{shown(text)} is not one of speed")
    return text


def _check_goal(
    sample: Path | None, quantize: str | None, runtime: str, python: Path | None
) -> None:
    """Refuse what --optimize would choose by itself, and a choice without rows to judge it by."""
    if sample is None:
        raise typer.BadParameter("--optimize speed: give rows to judge by with --sample FILE")
    for option, is_given in (
        ("--quantize", quantize is not None),
        ("--runtime", runtime not in ("auto", "onnx")),
        ("--python", python is not None),
    ):
        if is_given:
            raise typer.BadParameter(f"--optimize speed and {option} exclude each other")


@dataclass(slots=True)
class _Stage:
    """What Ctrl-C would leave behind now."""

    done: str = "nothing was pushed"


def push(
    name: Name,
    path: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, help="The model, a file or a folder.")
    ],
    *,
    format_name: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", parser=_format_name,
            help="auto, onnx, lightgbm, xgboost, catboost, sklearn, torch, keras, text or mlflow; "
                 "for a folder of MLflow, the flavour to take.",
        ),
    ] = "auto",
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime", metavar="RUNTIME", parser=_runtime_name,
            help="onnx, native (the library itself), openvino (text models), or auto: "
                 "onnx if it answers the same.",
        ),
    ] = "auto",
    sample: Annotated[
        Path | None,
        typer.Option(
            "--sample", metavar="FILE", exists=True, dir_okay=False,
            help="Rows to compare with the native library: CSV, JSON, Parquet or .npy.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", metavar="NUMBER",
            help="Largest relative difference allowed, 0 to 1 (default 1e-5; with --quantize "
                 "int8 0.1, int8-weights 0.05, fp16 0.01; with --optimize 0.01, and for "
                 "embeddings 1 - cosine, 0.001).",
            parser=real(0, 1),
        ),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(
            "--quantize", metavar="MODE", parser=_mode_name,
            help="Smaller weights: int8, int8-weights or fp16; what is lost is measured.",
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            "--optimize", metavar="GOAL", parser=_goal_name,
            help="speed: try smaller weights, and OpenVINO for text models, on --sample; push "
                 "the fastest form within the tolerance as one more version.",
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            "--python", metavar="EXE",
            help="Convert with this interpreter: its libraries are those that saved the model.",
        ),
    ] = None,
    is_code_trusted: Annotated[
        bool,
        typer.Option(
            "--trust-code", help="Run code in the file: Lambda layers of Keras, which are Python.",
        ),
    ] = False,
    timeout_s: ConvertTimeout = CONVERT_TIMEOUT_S,
    meta: Annotated[
        list[str] | None,
        typer.Option("--meta", metavar="KEY=VALUE", help="Kept with the version; may be repeated."),
    ] = None,
    is_loaded: Annotated[bool, typer.Option("--load", help="Load the version as well.")] = False,
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias", metavar="ALIAS", help="Let this name it (loads it first).",
            parser=alias_name,
        ),
    ] = None,
    is_promoted: Annotated[
        bool, typer.Option("--promote", help="Send all traffic to it (loads it first).")
    ] = False,
    reason: Reason = "",
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> None:  # fmt: skip
    """Convert a model, check it against its own library, and send it to the server."""
    from models.convert import ConvertOptions
    from serving.cli.optimizing import optimized, optimized_json, print_optimized, recorded

    metadata = _metadata(meta or ())
    if goal is not None:
        _check_goal(sample, quantize, runtime, python)
    _check_file(path)
    stage = _Stage()
    with (
        INTERRUPT.told(lambda: f"stopped, {stage.done}"),
        admin_client(admin_url) as client,
        tempfile.TemporaryDirectory(prefix="ramrack-push-") as folder,
    ):
        # Before a conversion of minutes, and with a clear reason if it would be in vain.
        client.check_push()
        package = _convert(name, path, ConvertOptions(
            format=format_name, sample=sample, meta=metadata, runtime=runtime,
            tolerance=None if goal else tolerance, quantize=quantize, folder=Path(folder),
            is_code_trusted=is_code_trusted, is_apart=True, timeout_s=timeout_s,
        ), python)  # fmt: skip
        result = _send(client, package, reason, stage)
        if not as_json:
            _print_result(package, result)
        more: JsonObject = {}
        if goal is not None and sample is not None:
            found = optimized(package, sample, tolerance, Path(folder))
            more = {**optimized_json(found), "original": {"version": result.version}}
            if not as_json:
                print_optimized(found)
            if (faster := recorded(found, result.version)) is not None:
                package, result = faster, _send(client, faster, reason, stage)
                if not as_json:
                    _print_result(package, result)
        if metadata and not result.created:
            note(
                f"--meta is not kept: {name}/{result.version} has this content already, and keeps "
                "the meta that it was first pushed with"
            )
        pushed = dataclasses.asdict(result) | _sizes(package) | {
            "parity": package.manifest.parity, **more}  # fmt: skip
        try:
            after = _after(client, result, reason, alias=alias, is_promoted=is_promoted,
                           is_loaded=is_loaded)  # fmt: skip
        except ClientError as error:
            # The version is there all the same, and whoever reads this must learn its number.
            if as_json:
                print_json(pushed | {"error": str(error), **_plan_of(error)})
            raise
    if as_json:
        print_json(pushed | after)
    else:
        for line in after["done"]:
            print(line)


def _plan_of(error: ClientError) -> dict[str, Any]:
    return {"plan": error.document["plan"]} if "plan" in error.document else {}


def _metadata(pairs: Sequence[str]) -> JsonObject:
    metadata: JsonObject = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            raise typer.BadParameter(f"--meta {pair!r}: use KEY=VALUE")
        metadata[key] = value
    return metadata


def _check_file(path: Path) -> None:
    """Refuse at once what is no model by its first bytes."""
    from models.convert.detect import detect_format

    detect_format(path)


def _convert(name: str, path: Path, options: ConvertOptions, python: Path | None) -> Package:
    with working(f"converting {path.name}"):
        package = _converter(python)(
            name, path, options, before_pickle=lambda: _warn_of_pickle(path)
        )
    # Minutes in libraries that may have swallowed it.
    INTERRUPT.check()
    return package


def _converter(python: Path | None) -> Callable[..., Package]:
    if python is None:
        from models.convert import convert

        return convert
    from models.convert.elsewhere import convert_elsewhere

    return partial(convert_elsewhere, python)


def _warn_of_pickle(path: Path) -> None:
    note(f"note: opening {path.name} runs code from that file; push only files you trust")


def _send(client: AdminClient, package: Package, reason: str, stage: _Stage) -> PushResult:
    from serving.client.push import push_package

    name = package.manifest.model

    def before_registration() -> None:
        INTERRUPT.check()
        stage.done = f"while the version was registered: see `ramrack ls {name}`"

    with bar(f"sending {name}") as shown_bar:

        def progress(sent_bytes: int, to_send_bytes: int, saved_bytes: int) -> None:
            stage = f"{size_text(sent_bytes)} sent, {size_text(saved_bytes)} there already"
            shown_bar.update(sent_bytes, to_send_bytes, stage)

        result = push_package(
            client, package, reason=reason, progress=progress,
            before_registration=before_registration,
        )  # fmt: skip
    stage.done = f"but {name}/{result.version} was pushed: see `ramrack ls {name}`"
    return result


def _sizes(package: Package) -> dict[str, int]:
    total = sum({source.digest: source.size_bytes for source in package.objects}.values())
    return {"total_bytes": total, "weight_bytes": package.manifest.weight_bytes}


def _print_result(package: Package, result: PushResult) -> None:
    sizes = _sizes(package)
    print(f"{result.model}: {size_text(sizes['total_bytes'])} in "
          f"{count_text(len(package.objects), 'object')}, "
          f"{size_text(result.bytes_sent)} sent, "
          f"{size_text(result.bytes_saved)} were there already")  # fmt: skip
    parity = package.manifest.parity or {}
    quantized = package.manifest.source.get("quantize")
    rows = count_text(parity.get("rows", "?"), "row")
    if isinstance(quantized, dict):
        from models.parity import labels_text

        labels = labels_text(*(_whole(parity, n) or 0 for n in ("label_disagreements", "ties")))
        before, after = (size_text(_whole(quantized, f"{n}_bytes")) for n in ("before", "after"))
        print(f"{quantized['mode']}: {before} of weights became {after}")
        print(f"parity with the original: largest difference {_difference(parity)}, "
              f"99.9 % below {_difference(parity, 'p999_difference')}, "
              f"{labels}, on {rows}")  # fmt: skip
    if reason := parity.get("reason"):
        print(reason)
    if parity and not isinstance(quantized, dict):
        against = parity.get("against", "the native library")
        print(f"parity with {against}: largest difference "
              f"{_difference(parity)} on {rows}")  # fmt: skip
    if isinstance(odd := parity.get("non_finite"), dict) and odd.get("rows_differing"):
        note(f"note: {odd['rows_differing']} of {count_text(odd.get('rows'), 'row')} with NaN, "
             "infinity or overflow are answered otherwise than by the library")  # fmt: skip
    was = "new version" if result.created else "the same content is there as version"
    print(f"{was} {result.version} ({result.digest})")


def _whole(document: JsonObject, key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) else None


def _difference(parity: JsonObject, key: str = "max_difference") -> str:
    value = parity.get(key)
    return f"{value:.3g}" if isinstance(value, int | float) else "not known"


def _after(
    client: AdminClient,
    result: PushResult,
    reason: str,
    *,
    alias: str | None,
    is_promoted: bool,
    is_loaded: bool,
) -> dict[str, Any]:
    name, version = result.model, result.version
    done: list[str] = []
    if is_loaded or alias or is_promoted:
        with bar(f"loading {name}/{version}") as shown:
            client.load(name, version, reason=reason, progress=operation_progress(shown))
        done.append(f"{name}/{version} is READY")
    if alias:
        client.set_alias(name, alias, version, reason)
        done.append(f"alias {alias} names it")
    if is_promoted:
        client.set_route(name, Traffic.whole(version).to_json(), reason)
    if done:
        details = client.version(name, version)
        done.append(f"it gets {details['traffic']} % of the traffic")
        return {"state": details["state"], "traffic": details["traffic"], "done": done}
    return {"done": done}
