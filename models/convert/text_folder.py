"""What a folder of a text model says: as sentence-transformers and transformers save one.

``modules.json``, ``1_Pooling/config.json`` and ``sentence_bert_config.json`` say how an embedding
is made of the encoder's output; ``id2label`` of ``config.json`` names the classes of a classifier.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from models.errors import ConversionRefused
from models.text_form import MAX_TOKENS
from registry.ident import shown

Pooling: TypeAlias = Literal["mean", "cls"]
_ONNX: Final = ("model.onnx", "onnx/model.onnx")
_SAFETENSORS: Final = "model.safetensors"
_MODULES: Final = ("Transformer", "Pooling", "Normalize")
_MODES: Final = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_CLASSIFIER: Final = "ForSequenceClassification"
_MAX_JSON_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TextFolder:
    """A text model on disk.

    ``weights``: an ONNX or .safetensors file. ``tokenizer``: tokenizer.json, or vocab.txt.
    ``labels``: of a classifier, in the order of its outputs; of an encoder none.
    """

    weights: Path
    tokenizer: Path
    config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    max_tokens: int
    is_stripped: bool
    is_lowercase: bool
    pooling: Pooling
    is_normalised: bool
    labels: tuple[str, ...]

    @property
    def is_onnx(self) -> bool:
        """Whether the weights come with a graph."""
        return self.weights.suffix == ".onnx"


def is_text_folder(path: Path) -> bool:
    """Tell whether a folder holds a model with a tokenizer."""
    folders = (path, path / "0_Transformer")
    return any(
        (folder / "config.json").is_file()
        and ((folder / "tokenizer.json").is_file() or (folder / "vocab.txt").is_file())
        for folder in folders
    )


def read_text_folder(path: Path) -> TextFolder:
    """Return what the folder says, or raise ConversionRefused naming file and field."""
    modules = _modules(path)
    base = path / modules["Transformer"] if modules else path
    config = _json(base / "config.json")
    labels = () if modules else _labels(config)
    pooling: Pooling = "mean"  # what sentence-transformers makes of a folder without modules.json
    if "Pooling" in modules:
        pooling = _pooling(path / modules["Pooling"] / "config.json")
    sentence = _json(base / "sentence_bert_config.json", is_needed=False)
    tokenizer_config = _json(base / "tokenizer_config.json", is_needed=False)
    _check_prompts(_json(path / "config_sentence_transformers.json", is_needed=False))
    return TextFolder(
        weights=_weights(base, config),
        tokenizer=_tokenizer(base),
        config=config,
        tokenizer_config=tokenizer_config,
        max_tokens=_max_tokens(config, sentence, tokenizer_config),
        is_stripped=not labels,  # sentence-transformers does that to each text, pipelines do not
        is_lowercase=bool(sentence.get("do_lower_case", False)),
        pooling=pooling,
        is_normalised="Normalize" in modules,
        labels=labels,
    )


def _modules(path: Path) -> dict[str, str]:
    """Return the folder of each module by its kind; empty where there is no modules.json."""
    file = path / "modules.json"
    if not file.is_file():
        return {}
    listed = _read(file)
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ConversionRefused("modules.json: expected a list of objects")
    found: dict[str, str] = {}
    for item in listed:
        kind = str(item.get("type", "")).rpartition(".")[2]
        if kind not in _MODULES or kind in found:
            raise ConversionRefused(
                f"modules.json: {shown(item.get('type'))} cannot be served: once each, "
                f"{', '.join(_MODULES)} can"
            )
        place = str(item.get("path", ""))
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise ConversionRefused(f"modules.json: path {shown(place)} leaves the folder")
        found[kind] = place
    if "Transformer" not in found or "Pooling" not in found:
        raise ConversionRefused("modules.json: a Transformer and a Pooling module are needed")
    return found


def _pooling(file: Path) -> Pooling:
    config = _json(file)
    if isinstance(config.get("pooling_mode"), str):
        chosen = [config["pooling_mode"]]
    else:
        chosen = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
        chosen = [_MODES.get(key, key) for key in chosen]
    if chosen == ["mean"]:
        return "mean"
    if chosen == ["cls"]:
        return "cls"
    raise ConversionRefused(
        f"{file.parent.name}/config.json: pooling {shown(chosen)} cannot be served: one of mean "
        "and cls can"
    )


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = config.get("architectures") or [""]
    if not str(kinds[0]).endswith(_CLASSIFIER):
        return ()
    problem = config.get("problem_type")
    if problem not in (None, "single_label_classification"):
        raise ConversionRefused(
            f"config.json: problem_type {shown(problem)} cannot be served: one label a text can"
        )
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(names, dict) or sorted(names) != sorted(str(n) for n in range(len(names))):
        raise ConversionRefused("config.json: id2label must name the classes 0, 1, 2, ...")
    labels = tuple(str(names[str(n)]) for n in range(len(names)))
    if len(set(labels)) != len(labels) or len(labels) < 2:
        raise ConversionRefused(
            f"config.json: id2label {shown(list(labels))}: two different classes at least are "
            "needed; a model that scores pairs cannot be served"
        )
    return labels


def _check_prompts(config: Mapping[str, Any]) -> None:
    if name := config.get("default_prompt_name"):
        raise ConversionRefused(
            f"config_sentence_transformers.json: default_prompt_name {shown(name)} puts words "
            "before each text, which is not supported: set it to null and send them yourself"
        )


def _max_tokens(
    config: Mapping[str, Any], sentence: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> int:
    positions = config.get("max_position_embeddings", 512)
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= 2  # the first two places stand for padding
    said = [sentence.get("max_seq_length"), tokenizer.get("model_max_length"), positions]
    # transformers writes 1e30 where it does not know.
    whole = [int(n) for n in said if isinstance(n, int | float) and 0 < n <= MAX_TOKENS]
    if not whole:
        raise ConversionRefused("config.json: max_position_embeddings is missing")
    return min(whole)


def _weights(base: Path, config: Mapping[str, Any]) -> Path:
    # Where a folder has both, a graph written here needs no mask and no segments.
    is_written_here = config.get("model_type") == "bert"
    for name in (_SAFETENSORS, *_ONNX) if is_written_here else (*_ONNX, _SAFETENSORS):
        if (base / name).is_file():
            return base / name
    if (base / "pytorch_model.bin").is_file():
        raise ConversionRefused(
            "pytorch_model.bin is a pickle: save the model with safe_serialization=True, which "
            "gives model.safetensors"
        )
    raise ConversionRefused(f"{shown(base.name)} has none of {', '.join((*_ONNX, _SAFETENSORS))}")


def _tokenizer(base: Path) -> Path:
    for name in ("tokenizer.json", "vocab.txt"):
        if (base / name).is_file():
            return base / name
    raise ConversionRefused(f"{shown(base.name)} has neither tokenizer.json nor vocab.txt")


def _json(path: Path, *, is_needed: bool = True) -> Mapping[str, Any]:
    if not path.is_file():
        if is_needed:
            raise ConversionRefused(f"{path.parent.name}/{path.name} is missing")
        return {}
    document = _read(path)
    if not isinstance(document, dict):
        raise ConversionRefused(f"{path.name}: expected an object")
    return document


def _read(path: Path) -> Any:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ConversionRefused(f"{path.name} has over {_MAX_JSON_BYTES} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConversionRefused(f"{path.name} is not JSON: {error}") from None
