"""The cases of ``scripts/bench parity``: all of them are there, and some of each family hold here.

The bench asks every case over HTTP; here a few go through the same conversion and the same runtime.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench.parity import differences
from models.servable import numpy_dtype
from registry.ident import MODEL_PATTERN
from scripts.parity_cases.__main__ import found_cases, hard_rows
from scripts.parity_cases.case import Case

pytestmark = [
    pytest.mark.extra, pytest.mark.slow, pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # of libraries, while they train
]  # fmt: skip
CASES, MISSING = found_cases(None)
# One for each way a model can go: other links, forms of files, categories, parts inside others.
SAMPLED = (
    "lightgbm-cross_entropy_lambda-missing", "lightgbm-lambdarank-grid",
    "lightgbm-binary-pandas-number", "xgboost-binary-hinge-missing", "xgboost-survival-aft-grid",
    "xgboost-multi-softprob.gblinear-missing", "sklearn-kindsforest-kinds-missing",
    "catboost-yetirank.group_id-grid", "sklearn-kmeans-regression-plain",
    "sklearn-scaledpcatree-regression-plain",
    "sklearn-columns.gradientboostingclassifier-multi-grid",
)  # fmt: skip


def test_the_table_has_a_row_for_everything():
    """At least 80, each with a name of its own that a model may have."""
    assert not {"catboost", "lightgbm", "sklearn", "xgboost"} & set(MISSING)
    names = [case.name for case in CASES]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [name for name in names if not re.fullmatch(MODEL_PATTERN, name)] == []
    assert len(names) >= 80
    assert set(SAMPLED) <= set(names)
    assert len({case.family for case in CASES}) >= 4


@pytest.mark.parametrize("case", [c for c in CASES if c.name in SAMPLED], ids=lambda c: c.name)
def test_what_is_served_answers_as_its_library(serve, tmp_path: Path, case: Case):
    """Rows of training, random ones, and those at and beside every threshold."""
    rng = np.random.default_rng(11)
    trained = case.train(rng)
    rows = hard_rows(trained, 600, rng)
    served = serve(trained.save(tmp_path))
    inputs = {
        spec.name: rows[spec.name].astype(numpy_dtype(spec.datatype))
        for spec in served.signature.inputs
    }
    got = {name: np.asarray(array) for name, array in served(inputs).items()}
    native = {name: np.asarray(array) for name, array in trained.answer(rows).items()}
    difference, labels = differences(got, native)
    assert difference <= 1e-5
    assert labels == 0
