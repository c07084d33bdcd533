"""Class labels of a Triton repository, put into the signature of the pushed version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.errors import ConversionRefused
from models.package import Package
from models.signature import parse_signature
from registry.ident import shown


def labelled(package: Package, labels: Mapping[str, list[str]]) -> Package:
    """Return the package with the labels of each output; raises ConversionRefused if one misfits.

    An output that has labels already, from the library that trained the model, keeps them.
    """
    if not labels:
        return package
    signature = parse_signature(package.manifest.signature)
    names = {spec.name for spec in signature.outputs}
    for name in labels:
        if name not in names:
            raise ConversionRefused(
                f"config.pbtxt: output {shown(name)} is none of the model's: {', '.join(names)}"
            )
    outputs = []
    for spec in signature.outputs:
        own = labels.get(spec.name)
        if own is None or spec.labels is not None:
            outputs.append(spec)
            continue
        classes = spec.shape[-1] if spec.shape else 1
        if classes not in (-1, len(own)):
            raise ConversionRefused(
                f"config.pbtxt: output {shown(spec.name)}: {len(own)} labels for {classes} classes"
            )
        outputs.append(replace(spec, labels=tuple(own)))
    document = replace(signature, outputs=tuple(outputs)).to_json()
    return replace(package, manifest=replace(package.manifest, signature=document))
