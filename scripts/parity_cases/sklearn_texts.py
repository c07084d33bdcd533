"""scikit-learn: models of texts, whose terms are counted, alone and beside other columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from sklearn import linear_model as lm
from sklearn import naive_bayes as nb
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.feature_selection import SelectKBest, chi2
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from scripts.parity_cases.case import Case, Columns, Trained

_ROWS = 900
_ODD = (
    "",
    " ",
    "I",
    "_",
    "İSTANBUL'da I \N{LATIN SMALL LETTER DOTLESS I}",
    "ΟΔΥΣΣΕΥΣ ΣΑΣ, ΣΑΣ.",
    "STRASSE Straße ẞ",
    "ﬁlm Ǆ \N{BLACK-LETTER CAPITAL H} ½",
    "cafe\N{COMBINING ACUTE ACCENT} CAFÉ café",
    "東京で寿司を食べた 한국어",
    "\N{GRINNING FACE}film\N{GRINNING FACE}",
    "tab\tline\r\nend\x0b\x1f\x85\N{NO-BREAK SPACE}film",
    "x_1 __init__ 3.14 007 don't e-mail",
    "film " * 300,
)
_STEMS = ("film", "plot", "Schauspiel", "música", "история", "東京", "price", "service", "naïve",
          "ΦΩΣ", "İzmir", "çok", "data", "x1", "über")  # fmt: skip


def texts_of(rng: np.random.Generator, rows: int = _ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Return texts ``(rows,)`` of a few hundred words, common and rare ones, and a number each."""
    words = [f"{stem}{end}" for stem in _STEMS for end in ("", "s", "en", "ý", "_2", "ing", "x9")]
    share = 1 / np.arange(1, len(words) + 1)
    meaning = rng.normal(size=len(words))
    texts, y = np.empty(rows, dtype=object), np.zeros(rows)
    for row in range(rows):
        drawn = rng.choice(len(words), size=rng.integers(1, 40), p=share / share.sum())
        y[row] = meaning[drawn].mean() * 3
        said = [words[at].upper() if rng.random() < 0.1 else words[at] for at in drawn]
        texts[row] = rng.choice([" ", ", ", "\n", " - "]).join(said)
    return texts, y


def _answers(model: Any, asked: Any) -> dict[str, np.ndarray]:
    predicted = np.asarray(model.predict(asked))
    if hasattr(model, "predict_proba"):
        return {"label": predicted, "probabilities": np.asarray(model.predict_proba(asked))}
    if hasattr(model, "decision_function"):
        return {"label": predicted, "scores": np.asarray(model.decision_function(asked))}
    return {"prediction": predicted}


def _saved(model: Any) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        path = folder / "model.joblib"
        joblib.dump(model, path)
        return path

    return save


def _target(objective: str, y: np.ndarray) -> np.ndarray:
    return np.digitize(y, {"binary": [0.0], "multi": [-1.0, 0.0, 1.0]}.get(objective, []))


def _asked(rng: np.random.Generator, texts: np.ndarray) -> np.ndarray:
    """Return rows to ask: those of training, some with words that it had not, and odd ones."""
    unseen = np.array([f"{text} Qwrtz{rng.integers(9)} OF a" for text in texts[:200]], dtype=object)
    return np.concatenate([texts, unseen, np.array(_ODD * 12, dtype=object)])


def _case(name: str, model: Any, objective: str, is_quick: bool = False) -> Case:
    def train(rng: np.random.Generator) -> Trained:
        texts, y = texts_of(rng)
        model.fit(texts, y if objective == "regression" else _target(objective, y))
        rows = {"text": _asked(rng, texts)}
        return Trained(_saved(model), rows, lambda rows: _answers(model, rows["text"].tolist()))

    return Case("sklearn", f"{name}:{objective}", "texts", train, is_quick)


def _beside(name: str, last: Any, objective: str) -> Case:
    """Texts beside a number and a category."""

    def train(rng: np.random.Generator) -> Trained:
        texts, y = texts_of(rng)
        number = rng.normal(size=len(texts)).astype(np.float32).astype(np.float64)
        city = rng.choice(np.array(["Bern", "Oslo", "日本"], dtype=object), len(texts))
        frame = pd.DataFrame({"review": texts, "age": number, "city": city})
        columns = ColumnTransformer(
            [("words", TfidfVectorizer(), "review"), ("age", StandardScaler(), ["age"]),
             ("pairs", CountVectorizer(ngram_range=(2, 2), min_df=3), "review"),
             ("city", OneHotEncoder(handle_unknown="ignore"), ["city"])]
        )  # fmt: skip
        model = make_pipeline(columns, last).fit(frame, _target(objective, y + number))
        asked = _asked(rng, texts)
        more = rng.choice(np.array(["Bern", "Oslo", "Paris"], dtype=object), len(asked))
        rows = {"review": asked[:, None], "city": more[:, None],
                "age": rng.normal(size=(len(asked), 1)).astype(np.float32)}  # fmt: skip

        def answer(rows: Columns) -> dict[str, np.ndarray]:
            return _answers(model, pd.DataFrame({key: rows[key][:, 0] for key in frame.columns}))

        return Trained(_saved(model), rows, answer, is_nan_taken=False, is_infinity_taken=False,
                       largest=20.0)  # fmt: skip

    return Case("sklearn", f"{name}:{objective}", "texts-mixed", train)


_LOGISTIC = lm.LogisticRegression(max_iter=300)
_BOTH = FeatureUnion(
    [("w", TfidfVectorizer()), ("c", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4)))]
)
CASES = [
    _case("TfidfLogistic", make_pipeline(TfidfVectorizer(), _LOGISTIC), "binary", is_quick=True),
    _case("TfidfLogistic", make_pipeline(TfidfVectorizer(sublinear_tf=True), _LOGISTIC), "multi"),
    _case("TfidfLinearSVC", make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LinearSVC()),
          "multi"),
    _case("TfidfSGD", make_pipeline(TfidfVectorizer(strip_accents="unicode"),
                                    lm.SGDClassifier(random_state=1)), "binary"),
    _case("TfidfRidge", make_pipeline(TfidfVectorizer(norm=None), lm.Ridge()), "regression"),
    _case("CountMultinomial", make_pipeline(CountVectorizer(), nb.MultinomialNB()), "multi"),
    _case("CountComplement", make_pipeline(CountVectorizer(lowercase=False), nb.ComplementNB()),
          "multi"),
    _case("BinaryBernoulli", make_pipeline(CountVectorizer(binary=True), nb.BernoulliNB()),
          "binary"),
    _case("CountTfidfLogistic", make_pipeline(CountVectorizer(stop_words=["film", "plot"]),
                                              TfidfTransformer(), _LOGISTIC), "multi"),
    _case("CharLogistic", make_pipeline(TfidfVectorizer(analyzer="char", ngram_range=(1, 3),
                                                        strip_accents="ascii"), _LOGISTIC),
          "binary"),
    _case("WordsCharsLogistic", make_pipeline(_BOTH, _LOGISTIC), "multi"),
    _case("BestLinearSVC", make_pipeline(TfidfVectorizer(), SelectKBest(chi2, k=40), LinearSVC()),
          "binary"),
    _case("SvdLogistic", make_pipeline(TfidfVectorizer(), TruncatedSVD(20, random_state=1),
                                       _LOGISTIC), "binary"),
    _case("HashingSGD", make_pipeline(HashingVectorizer(),
                                      lm.SGDClassifier(loss="log_loss", random_state=1)), "multi"),
    _case("TfidfForest", make_pipeline(TfidfVectorizer(),
                                       RandomForestClassifier(15, random_state=1)), "multi"),
    _beside("TextColumnsLogistic", _LOGISTIC, "multi"),
]  # fmt: skip
