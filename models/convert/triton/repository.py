"""Reading a repository: for each folder what would be pushed, with which settings, or why not.

Nothing is converted and nothing is sent here: this decides, ``ramrack import`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from models.convert.detect import detect_format
from models.convert.inside import inside
from models.convert.triton.backend import model_file
from models.convert.triton.pbtxt import Message, parse
from models.errors import ConversionRefused
from registry.errors import InvalidInput
from registry.ident import check_model_name, parse_version, shown
from registry.manifest import JsonObject
from registry.model_settings import DEFAULT_RETAIN

CONFIG: Final = "config.pbtxt"
_MAX_CONFIG_BYTES: Final = 1024**2
_MAX_LABELS_BYTES: Final = 16 * 1024**2
_SCHEDULERS: Final = {
    "ensemble_scheduling": "an ensemble joins models on the server: call them one after the other, "
    "or push one graph of both",
    "sequence_batching": "sequences keep state between requests, and a version here keeps none",
}
_IGNORED: Final = {
    "instance_group": "instance_group is not taken: all versions share the server's threads",
    "model_warmup": "model_warmup is not taken: every version is warmed up before it answers",
    "optimization": "optimization is not taken: graphs are optimised when they are loaded",
    "response_cache": "response_cache is not taken: the server's setting is response_cache_bytes",
    "rate_limiter": "rate_limiter is not taken: a model's setting is max_concurrency",
    "version_policy": "version_policy is not taken: every version is pushed, and you route",
}


@dataclass(frozen=True, slots=True)
class TritonVersion:
    """One numeric folder. ``refusal``: why it cannot be taken, "" if it can."""

    number: int
    file: Path | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class TritonModel:
    """One folder of the repository.

    ``labels``: class labels by output name. ``settings``: of the model here. ``notes``: what of its
    configuration is not taken, in words. ``refusal``: why nothing of it can be.
    """

    name: str
    backend: str = ""
    versions: tuple[TritonVersion, ...] = ()
    labels: dict[str, list[str]] = field(default_factory=dict)
    settings: JsonObject = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refusal: str = ""


def read_repository(folder: Path) -> list[TritonModel]:
    """Return what each folder of a repository holds, by name; raises ConversionRefused if none."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if not folders:
        raise ConversionRefused(f"{shown(folder.name)}: there is no model folder in it")
    return [_model(folder, path) for path in folders]


def _model(repository: Path, path: Path) -> TritonModel:
    try:
        check_model_name(path.name)
        root = inside(repository, path.name, "folder")
        config = _config(root)
        return _read(root, path.name, config)
    except (ConversionRefused, InvalidInput) as error:
        return TritonModel(path.name, refusal=str(error))


def _config(root: Path) -> Message:
    if not (root / CONFIG).exists() and not (root / CONFIG).is_symlink():
        return Message()  # Triton completes it from the model, too
    path = inside(root, CONFIG, "file")
    if not path.is_file() or path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ConversionRefused(f"{CONFIG}: not a file of at most {_MAX_CONFIG_BYTES} bytes")
    try:
        return parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConversionRefused(f"{CONFIG}: not UTF-8 text") from error


def _read(root: Path, name: str, config: Message) -> TritonModel:
    if (named := config.text("name")) and named != name:
        raise ConversionRefused(f"{CONFIG}: name {shown(named)} is not that of its folder")
    for key, reason in _SCHEDULERS.items():
        if key in config.fields:
            raise ConversionRefused(f"{key}: {reason}")
    if config.message("model_transaction_policy").text("decoupled").lower() == "true":
        raise ConversionRefused("decoupled: a request here has exactly one answer")
    backend = config.text("backend") or config.text("platform")
    notes: list[str] = []
    versions = tuple(_versions(root, config, notes))
    if not versions:
        raise ConversionRefused("there is no version folder (1, 2, ...) in it")
    if all(version.refusal for version in versions):
        raise ConversionRefused(versions[-1].refusal)
    notes += [note for key, note in _IGNORED.items() if key in config.fields]
    if backend == "fil":
        notes.append("FIL's input__0 and output__0 have other names here: see the model's metadata")
    settings = _settings(config, notes)
    labels = _labels(root, config)
    return TritonModel(name, backend or "onnxruntime", versions, labels, settings, tuple(notes))


def _versions(root: Path, config: Message, notes: list[str]) -> list[TritonVersion]:
    found = []
    for path in root.iterdir():
        if not path.is_dir() or path.name == "configs":
            continue
        try:
            number = parse_version(path.name)
        except InvalidInput:
            notes.append(f"folder {shown(path.name)} is not taken: it is no version number")
        else:
            found.append(_version(root, number, config))
    found.sort(key=lambda version: version.number)
    if len(found) > DEFAULT_RETAIN:
        notes.append(
            f"{len(found) - DEFAULT_RETAIN} older versions are not taken: {DEFAULT_RETAIN} are kept"
        )
    return found[-DEFAULT_RETAIN:]


def _version(root: Path, number: int, config: Message) -> TritonVersion:
    try:
        file = model_file(inside(root, str(number), "version"), config)
        if detect_format(file) == "pickle":
            raise ConversionRefused(
                f"{shown(file.name)} is a Python pickle, which runs code when it is opened: an "
                "import opens none; use `ramrack push` if you trust it"
            )
    except ConversionRefused as error:
        return TritonVersion(number, None, f"version {number}: {error}")
    return TritonVersion(number, file)


def _settings(config: Message, notes: list[str]) -> JsonObject:
    settings: JsonObject = {}
    if "max_batch_size" in config.fields and config.number("max_batch_size") == 0:
        # Triton never merges requests of such a model.
        settings["batching"] = False
    if "dynamic_batching" not in config.fields:
        return settings
    batching = config.message("dynamic_batching")
    settings["batching"] = True
    policy = batching.message("default_queue_policy")
    if timeout_us := policy.number("default_timeout_microseconds"):
        settings["timeout_ms"] = min(max(1, timeout_us // 1000), 3_600_000)
    if batching.number("max_queue_delay_microseconds"):
        notes.append(
            "max_queue_delay_microseconds is not taken: the server's setting is max_queue_delay_ms"
        )
    if policy.number("max_queue_size"):
        notes.append("max_queue_size is not taken: queue_rows counts rows, not requests")
    if batching.number("priority_levels"):
        notes.append("priority_levels is not taken: a model has one priority here")
    return settings


def _labels(root: Path, config: Message) -> dict[str, list[str]]:
    labels = {}
    for output in config.messages("output"):
        name = output.text("label_filename")
        if not name:
            continue
        path = inside(root, name, f"{CONFIG}: output {shown(output.text('name'))}.label_filename")
        if not path.is_file() or path.stat().st_size > _MAX_LABELS_BYTES:
            raise ConversionRefused(f"labels {shown(name)}: not a file of a few bytes")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ConversionRefused(f"labels {shown(name)}: not UTF-8 text") from error
        labels[output.text("name")] = [line.strip() for line in lines if line.strip()]
    return labels
