"""What another Python runs to convert a model: ``python -m models.convert.elsewhere_child FOLDER``.

FOLDER holds ``request.json``; ``answer.json`` and the objects are written into it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from models import confinement
from models.convert import ConvertOptions, convert
from models.convert.extras import ModulesMissing
from models.errors import ConversionRefused
from registry.errors import InvalidInput
from registry.ident import digest_hex
from registry.manifest import JsonObject


def main() -> int:
    """Convert what the request names and write the answer."""
    confinement.die_with(os.getppid())
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    options = ConvertOptions(
        format=request["format"],
        sample=Path(request["sample"]) if request["sample"] is not None else None,
        tolerance=request["tolerance"],
        runtime=request["runtime"],
        quantize=request["quantize"],
        folder=Path(request["folder"]) if request["folder"] is not None else None,
        meta=request["meta"],
        is_code_trusted=request["is_code_trusted"],
        timeout_s=request["timeout_s"],
    )
    answer: JsonObject
    try:
        package = convert(request["name"], Path(request["path"]), options)
    except ModulesMissing as error:
        answer = {"missing": list(error.modules)}
    except (ConversionRefused, InvalidInput) as error:
        answer = {"refused": str(error)}
    else:
        for item in package.objects:
            with (folder / "objects" / digest_hex(item.digest)).open("wb") as file:
                for chunk in item.chunks():
                    file.write(chunk)
        answer = {
            "manifest": package.manifest.to_json(),
            "objects": [item.digest for item in package.objects],
        }
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
