"""Small real models, trained on shipped or synthetic data, for demos and tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from models.zoo.artefact import Artefact
from models.zoo.recommender import build_recommender
from models.zoo.tables import build_churn, build_diabetes, build_digits, build_fraud, build_wine

__all__ = ["BUILDERS", "Artefact", "build_recommender"]

# Each makes its files in the folder it is given.
BUILDERS: Final[dict[str, Callable[[Path], Artefact]]] = {
    "fraud": build_fraud,
    "digits": build_digits,
    "wine": build_wine,
    "diabetes": build_diabetes,
    "churn": build_churn,
    "recommender": build_recommender,
}
