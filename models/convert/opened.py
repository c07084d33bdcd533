"""Opening a package on the pusher's side by the code that will serve it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from models.errors import ConversionRefused, InputRefused, LoadFailed, RunFailed
from models.package import Package
from models.parity import Answer, Inputs
from models.runtime.loader import RuntimeLoader
from models.servable import Array, Inspection, LoadSpec, Servable
from models.signature import parse_signature
from registry.ident import digest_hex


@contextmanager
def opened(package: Package, threads: int = 1) -> Iterator[Servable]:
    """Give the servable of a package, its objects in a folder as the store has them.

    Raises ConversionRefused with the reason where it cannot be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="ramrack-open-") as text:
        folder = Path(text)
        for item in package.objects:
            with (folder / digest_hex(item.digest)).open("wb") as file:
                for chunk in item.chunks():
                    file.write(chunk)
        signature = parse_signature(package.manifest.signature)
        inspection = Inspection(signature, False, "", False, 0.0, 0.0, 0)
        spec = LoadSpec(package.manifest.model, 0, package.manifest, folder, threads, inspection)
        try:
            servable = RuntimeLoader(threads).load(spec)
        except LoadFailed as error:
            raise ConversionRefused(str(error)) from error
        try:
            yield servable
        finally:
            servable.close()


def answer_of(servable: Servable, chunk_rows: int) -> Answer:
    """Return what a servable answers to rows, ``chunk_rows`` of them at a time."""
    import numpy as np

    names = [spec.name for spec in servable.signature.outputs]

    def answer(inputs: Inputs) -> Mapping[str, Array]:
        rows = min(len(array) for array in inputs.values())
        parts: list[list[Array]] = []
        for start in range(0, rows, chunk_rows):
            chunk = {name: array[start : start + chunk_rows] for name, array in inputs.items()}
            try:
                parts.append(servable.run(chunk))
            except (InputRefused, RunFailed) as error:
                raise ConversionRefused(str(error)) from error
        return {name: np.concatenate([p[i] for p in parts]) for i, name in enumerate(names)}

    return answer
