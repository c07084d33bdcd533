"""The form of a text version: a tokenizer beside an encoder, as the manifest's ``runtime`` says it.

Knows no runtime: the parent, the inspection and the workers read the same document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from models.errors import LoadFailed
from models.signature import Signature, parse_signature
from registry.errors import InvalidInput
from registry.ident import check_digest, shown
from registry.manifest import JsonObject, Manifest

RUNTIME_NAME: Final = "text"
INPUT_NAME: Final = "text"
EMBEDDING: Final = "embedding"
# What an encoder may be fed, each ``(rows, tokens)``.
ENCODER_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
MAX_TOKENS: Final = 8192
_ENGINES: Final = ("onnx", "openvino")
Kind: TypeAlias = Literal["embedding", "probabilities"]


@dataclass(frozen=True, slots=True)
class TextForm:
    """How texts become what the encoder takes.

    ``tokenizer``: digest of the object with tokenizer.json. ``max_tokens``: tokens of a text that
    count, special ones included. ``is_stripped`` and ``is_lowercase``: what is done to a text
    first. ``are_rows_together``: rows of one length share a run of the encoder. ``engine``: the
    runtime document of the encoder alone, and ``encoder`` its signature.
    """

    tokenizer: str
    max_tokens: int
    is_stripped: bool
    is_lowercase: bool
    are_rows_together: bool
    engine: JsonObject
    encoder: Signature

    def to_json(self) -> JsonObject:
        """Return the manifest's ``runtime``."""
        return {
            "name": RUNTIME_NAME,
            "tokenizer": self.tokenizer,
            "max_tokens": self.max_tokens,
            "strip": self.is_stripped,
            "lowercase": self.is_lowercase,
            "rows_together": self.are_rows_together,
            "engine": self.engine,
            "encoder": self.encoder.to_json(),
        }


def parse_text_form(manifest: Manifest) -> TextForm:
    """Return the form of a text version, or raise LoadFailed naming the field."""
    document = manifest.runtime
    try:
        tokenizer = check_digest(document.get("tokenizer"))
        encoder = parse_signature(document.get("encoder"))
    except InvalidInput as error:
        raise LoadFailed(f"runtime: {error}") from None
    if tokenizer not in {entry.digest for entry in manifest.tensors}:
        raise LoadFailed(f"runtime.tokenizer {tokenizer} is no object of the manifest")
    tokens = document.get("max_tokens")
    if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
        raise LoadFailed(f"runtime.max_tokens {shown(tokens)} must be 1 to {MAX_TOKENS}")
    engine = document.get("engine")
    if not isinstance(engine, dict) or engine.get("name") not in _ENGINES:
        raise LoadFailed(f"runtime.engine must name one of {', '.join(_ENGINES)}")
    for spec in encoder.inputs:
        if spec.name not in ENCODER_INPUTS or spec.shape != (-1, -1):
            raise LoadFailed(
                f"runtime.encoder: input {shown(spec.name)} {list(spec.shape)} must be one of "
                f"{', '.join(ENCODER_INPUTS)}, with shape [-1, -1]"
            )
        if spec.datatype not in ("INT64", "INT32"):
            raise LoadFailed(f"runtime.encoder: input {spec.name!r} must be INT64 or INT32")
    if len(encoder.outputs) != 1:
        raise LoadFailed(f"runtime.encoder: {len(encoder.outputs)} outputs, one is needed")
    return TextForm(
        tokenizer=tokenizer,
        max_tokens=tokens,
        is_stripped=_flag(document, "strip"),
        is_lowercase=_flag(document, "lowercase"),
        are_rows_together=_flag(document, "rows_together"),
        engine=engine,
        encoder=encoder,
    )


def _flag(document: Mapping[str, object], key: str) -> bool:
    value = document.get(key)
    if not isinstance(value, bool):
        raise LoadFailed(f"runtime.{key} {shown(value)} must be true or false")
    return value
