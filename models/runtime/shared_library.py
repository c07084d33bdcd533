"""The C library inside an installed Python package, opened without importing the package.

Measured: importing lightgbm costs a process 87 MB of private memory, for it brings pandas, scipy
and scikit-learn; its C library alone, and XGBoost's, less than 1: their code is mapped and shared.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from models.errors import LoadFailed


def missing_advice(library: str) -> str:
    """Return what to say and to type where a library is not installed."""
    return f"the Python module {library!r} is missing: type `pip install 'ramrack[{library}]'`"


@functools.cache
def shared_library(package: str, file: str) -> ctypes.CDLL:
    """Return the library, once for the process; raises LoadFailed where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise LoadFailed(missing_advice(package))
    path = Path(spec.origin).parent / "lib" / file
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        reason = str(error).replace(str(path.parent), "").strip("/")
        raise LoadFailed(f"the library of {package} cannot be opened: {reason}") from None


def installed_version(module: str) -> str:
    """Return the version of the distribution that brings a module, or an empty string."""
    for name in (module, *packages_distributions().get(module, ())):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
