"""Computing a text version: texts to tokens, tokens through an encoder, an embedding or a class.

Nothing is ever padded: rows of one length share a run of the encoder, others have runs of their
own. So the answer to a text cannot depend on how long its neighbours are, and no time goes into
tokens that nobody sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from models.computed import computed_manifest
from models.errors import InputRefused, LoadFailed, RunFailed
from models.memory import trim
from models.runtime.outputs import Outputs
from models.runtime.terminations import Terminations
from models.runtime.tokens import TextTokenizer, Tokens
from models.runtime.warm_up import warmed
from models.servable import Array, Loader, LoadSpec, Servable, numpy_dtype
from models.signature import Signature
from models.text_form import INPUT_NAME, TextForm, parse_text_form
from registry.ident import digest_hex, shown

# Of one run of the encoder: its memory grows with them.
_RUN_TOKENS: Final = 4096


class TextLoader:
    """Loads text versions; ``loader_of`` gives the loader of a runtime by its name."""

    def __init__(self, loader_of: Callable[[object], Loader]) -> None:
        self._loader_of = loader_of

    def load(self, spec: LoadSpec) -> TextServable:
        """Open tokenizer and encoder and warm them up, or raise LoadFailed."""
        form = parse_text_form(spec.manifest)
        check_outputs(spec.inspection.signature, form)
        tokenizer = TextTokenizer(spec.objects_dir / digest_hex(form.tokenizer), form)
        inner = replace(
            spec,
            manifest=computed_manifest(spec.manifest),
            inspection=replace(spec.inspection, signature=form.encoder),
        )
        encoder = self._loader_of(form.engine.get("name")).load(inner)
        return warmed(TextServable(tokenizer, encoder, form, spec.inspection.signature))


def check_outputs(signature: Signature, form: TextForm) -> None:
    """Raise LoadFailed unless the signature is one text in, and what the encoder gives out."""
    inputs = [(spec.name, spec.datatype, len(spec.shape)) for spec in signature.inputs]
    if inputs != [(INPUT_NAME, "BYTES", 1)]:
        raise LoadFailed(f"signature.inputs must be one {INPUT_NAME!r}, BYTES, of shape [-1]")
    given = form.encoder.outputs[0]
    last = signature.outputs[-1]
    if last.name != given.name or last.datatype != given.datatype:
        raise LoadFailed(f"signature.outputs: {shown(last.name)} is not the encoder's")
    others = [spec.name for spec in signature.outputs[:-1]]
    if others not in ([], ["label"]):
        raise LoadFailed(f"signature.outputs: {shown(others)} cannot be computed")
    if others and not last.labels:
        raise LoadFailed(f"signature.outputs: {shown(last.name)} needs labels")


class TextServable:
    """A tokenizer and an encoder. ``run`` may be called from any thread, several at a time."""

    def __init__(
        self, tokenizer: TextTokenizer, encoder: Servable, form: TextForm, signature: Signature
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._form = form
        self._signature = signature
        self._outputs = Outputs(signature)
        self._labels = _labels(signature)
        self._terminations = Terminations()

    @property
    def signature(self) -> Signature:
        """What ``run`` takes and gives."""
        return self._signature

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Compute ``outputs``; raises InputRefused, RunFailed or RunTerminated."""
        names = self._outputs.chosen(outputs)
        elements = _elements(inputs)
        if not elements:
            return self._outputs.no_rows(names)
        if not names:
            return []
        check = self._terminations.begin()
        values = self._encoded(self._tokenizer.encode(elements, check), check)
        return [self._labelled(values) if name == "label" else values for name in names]

    def terminate(self) -> None:
        """End all runs under way; each raises RunTerminated. Later runs are not affected."""
        self._terminations.end_all()
        self._encoder.terminate()

    def close(self) -> None:
        """Give back all memory. No run may be under way. A second call does nothing."""
        self._encoder.close()
        trim()

    def _encoded(self, texts: Sequence[Tokens], check: Callable[[], None]) -> Array:
        values: Array | None = None
        for places in self._runs(texts):
            check()
            answer = self._encoder.run(self._feeds([texts[place] for place in places]))[0]
            if len(answer) != len(places):
                raise RunFailed(f"the encoder answers {len(answer)} rows to {len(places)} texts")
            if values is None:
                values = np.empty((len(texts), *answer.shape[1:]), answer.dtype)
            values[places] = answer
        if values is None:
            raise RunFailed("there was nothing to run")
        return values

    def _runs(self, texts: Sequence[Tokens]) -> Iterator[list[int]]:
        """Yield the places of the texts of each run: all of one length, not too many tokens."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for place, text in enumerate(texts):
            by_length[len(text.ids)].append(place)
        for length, places in by_length.items():
            most = max(1, _RUN_TOKENS // length) if self._form.are_rows_together else 1
            for start in range(0, len(places), most):
                yield places[start : start + most]

    def _feeds(self, texts: Sequence[Tokens]) -> dict[str, Array]:
        feeds: dict[str, Array] = {}
        for spec in self._form.encoder.inputs:
            dtype = numpy_dtype(spec.datatype)
            if spec.name == "attention_mask":
                feeds[spec.name] = np.ones((len(texts), len(texts[0].ids)), dtype)
            else:
                rows = [text.ids if spec.name == "input_ids" else text.types for text in texts]
                feeds[spec.name] = np.array(rows, dtype)
        return feeds

    def _labelled(self, values: Array) -> Array:
        if self._labels is None or values.shape[1:] != self._labels.shape:
            raise RunFailed("the encoder gives another number of classes than there are labels")
        # The first of equals, as numpy's argmax.
        return np.asarray(self._labels[values.argmax(axis=1)])


def _elements(inputs: Mapping[str, Array]) -> list[object]:
    array = inputs.get(INPUT_NAME)
    if array is None:
        raise InputRefused(f"input {INPUT_NAME!r} is missing")
    if len(inputs) > 1:
        raise InputRefused(f"input {shown(min(set(inputs) - {INPUT_NAME}))} is unknown")
    if array.dtype != object or array.ndim != 1:
        raise InputRefused(
            f"input {INPUT_NAME!r}: got {array.dtype} of shape {list(array.shape)}, "
            "expected BYTES of shape [-1]"
        )
    return list(array)


def _labels(signature: Signature) -> Array | None:
    labels = signature.outputs[-1].labels
    if "label" not in {spec.name for spec in signature.outputs} or labels is None:
        return None
    is_text = signature.outputs[0].datatype == "BYTES"
    if not all(isinstance(label, str) is is_text for label in labels):
        raise LoadFailed("signature.outputs: the labels do not fit the datatype of 'label'")
    array = np.empty(len(labels), dtype=object if is_text else np.int64)
    array[:] = labels
    return array
