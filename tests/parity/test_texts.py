"""Texts whose terms are counted: cut, counted and answered as scikit-learn does it."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn import (
    calibration,
    compose,
    decomposition,
    ensemble,
    feature_selection,
    linear_model,
    multiclass,
    naive_bayes,
    preprocessing,
    svm,
)
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
    strip_accents_ascii,
    strip_accents_unicode,
)
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.utils import murmurhash3_32

from models.convert.term_texts import ODD, made_texts
from models.convert.vectorizers import term_input
from models.errors import ConversionRefused, InputRefused
from models.runtime.term_counts import (
    MAX_CHARACTERS,
    Counts,
    murmur3,
    open_counter,
    without_accents,
)
from models.servable import Array
from models.terms_form import TOKEN_PATTERNS

from .conftest import Served
from .test_sklearn_estimators import TOLERANCE, check

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]
WORDS = ["film", "plot", "Story", "MÚSICA", "история", "naïve", "şey", "東京", "price_2", "x1",
         "don't", "ΦΩΣ"]  # fmt: skip


def corpus(rows: int = 240) -> tuple[list[str], Array]:
    """Return texts of few words and a number for each."""
    rng = np.random.default_rng(3)
    drawn = [rng.integers(0, len(WORDS), rng.integers(1, 12)) for _ in range(rows)]
    texts = [" ".join(WORDS[at] for at in row) for row in drawn]
    return texts, np.array([np.mean(row) for row in drawn]) - len(WORDS) / 2


TEXTS, Y = corpus()
CLASSES = np.digitize(Y, [-1.5, 0.0, 1.5])


def asked(vectorizers: list[Any], rows: int = 300) -> list[str]:
    return list(made_texts(vectorizers, (), rows, np.random.default_rng(9)))


def counted(vectorizer: Any, texts: list[str]) -> list[Counts]:
    item, vocabulary = term_input(vectorizer, "text", "t")
    counter = open_counter(item, vocabulary.data.splitlines())
    return [counter.count(text) for text in texts]


def native_counts(vectorizer: Any, texts: list[str]) -> list[Counts]:
    matrix = vectorizer.transform(texts).tocsr()
    columns, values = (
        np.split(part, matrix.indptr[1:-1]) for part in (matrix.indices, matrix.data)
    )
    return [
        dict(zip(mine.tolist(), numbers.tolist(), strict=True))
        for mine, numbers in zip(columns, values, strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"lowercase": False}, {"strip_accents": "unicode"}, {"strip_accents": "ascii"},
        {"ngram_range": (1, 3)}, {"ngram_range": (2, 2), "stop_words": ["film", "x1"]},
        {"stop_words": "english"}, {"binary": True}, {"token_pattern": r"\w+"},
        {"token_pattern": r"(?u)\b[a-zA-Z]{2,}\b"}, {"token_pattern": r"\S+"},
        {"analyzer": "char"}, {"analyzer": "char", "ngram_range": (2, 4)},
        {"analyzer": "char_wb", "ngram_range": (1, 5)},
        {"analyzer": "char_wb", "ngram_range": (3, 6), "strip_accents": "unicode"},
        {"analyzer": "char", "ngram_range": (1, 2), "strip_accents": "ascii", "binary": True},
    ],
    ids=str,
)  # fmt: skip
def test_each_text_is_counted_as_countvectorizer_counts_it(options: dict[str, Any]):
    """Odd writing included: the columns and the numbers are the same, all of them."""
    vectorizer = CountVectorizer(**options).fit([*TEXTS, *ODD])
    texts = [*asked([vectorizer]), *ODD, *(a + b for a in ODD for b in ODD)]
    assert counted(vectorizer, texts) == native_counts(vectorizer, texts)


@pytest.mark.parametrize(
    "options", [{}, {"n_features": 16}, {"alternate_sign": False, "ngram_range": (1, 2)},
                {"n_features": 8, "binary": True}, {"analyzer": "char_wb", "ngram_range": (2, 3)}],
    ids=str,
)  # fmt: skip
def test_each_text_is_hashed_as_hashingvectorizer_hashes_it(options: dict[str, Any]):
    """Signs and collisions included."""
    vectorizer = HashingVectorizer(norm=None, **options)
    texts = [*asked([vectorizer]), *ODD]
    assert counted(vectorizer, texts) == native_counts(vectorizer, texts)


def test_terms_are_hashed_as_scikit_learn_hashes_them(rng):
    """Of every length up to some words."""
    terms = ["".join(chr(at) for at in rng.integers(32, 0x2FFF, n)) for n in range(40)]
    assert [murmur3(term) for term in terms] == [murmurhash3_32(term, 0) for term in terms]


@pytest.mark.parametrize(
    ("accents", "native"), [("unicode", strip_accents_unicode), ("ascii", strip_accents_ascii)]
)
def test_every_character_loses_its_accents_as_in_training(accents: str, native: Any, rng):
    """All of Unicode, in an order in which marks stand beside each other."""
    points = np.array([n for n in range(1, sys.maxunicode, 3) if not 0xD800 <= n < 0xE000])
    text = "".join(map(chr, rng.permutation(points)))
    assert without_accents(text, accents) == native(text)


CASES = [
    (TfidfVectorizer(), linear_model.LogisticRegression()),
    (CountVectorizer(ngram_range=(1, 2)), TfidfTransformer(norm="l1", sublinear_tf=True),
     linear_model.SGDClassifier(random_state=0)),
    (CountVectorizer(), naive_bayes.MultinomialNB()),
    (CountVectorizer(), naive_bayes.ComplementNB()),
    (TfidfVectorizer(), naive_bayes.BernoulliNB(binarize=0.3)),
    (TfidfVectorizer(norm=None), "passthrough", linear_model.Ridge()),
    (TfidfVectorizer(), decomposition.TruncatedSVD(4, random_state=0),
     preprocessing.Normalizer(), linear_model.LogisticRegression()),
    (CountVectorizer(), feature_selection.SelectKBest(feature_selection.chi2, k=5),
     preprocessing.MaxAbsScaler(), preprocessing.StandardScaler(with_mean=False),
     multiclass.OneVsRestClassifier(svm.LinearSVC())),
    (TfidfVectorizer(), ensemble.RandomForestClassifier(5, random_state=0)),
    (TfidfVectorizer(), xgboost.XGBClassifier(n_estimators=4, nthread=1)),
    (FeatureUnion([("w", TfidfVectorizer()),
                   ("s", make_pipeline(TfidfVectorizer(analyzer="char"),
                                       decomposition.TruncatedSVD(3, random_state=0)))],
                  transformer_weights={"s": 0.5}), linear_model.LogisticRegression()),
    (HashingVectorizer(n_features=2**12), linear_model.SGDClassifier(loss="log_loss")),
    (HashingVectorizer(n_features=64, alternate_sign=False, norm=None), TfidfTransformer(),
     linear_model.LogisticRegression()),
]  # fmt: skip


@pytest.mark.parametrize("steps", CASES, ids=lambda steps: "-".join(
    step if isinstance(step, str) else type(step).__name__ for step in steps))  # fmt: skip
def test_a_pipeline_of_texts_answers_as_scikit_learn(steps: tuple[Any, ...], serve):
    """One input ``text``, a sentence a row; the numbers are scikit-learn's."""
    model = make_pipeline(*steps)
    model.fit(TEXTS, CLASSES if hasattr(steps[-1], "predict_proba") or
              "Classifier" in type(steps[-1]).__name__ or "SVC" in type(steps[-1]).__name__
              else Y)  # fmt: skip
    served = serve(model)
    (spec,) = served.signature.inputs
    assert (spec.name, spec.datatype, spec.shape) == ("text", "BYTES", (-1,))
    assert served.parity["rows"] >= 2000
    assert served.parity["max_difference"] <= TOLERANCE / 10
    check_texts(model, served, asked([steps[0]], 120) + list(ODD))


def test_several_labels_of_a_text(serve):
    """One against rest, a label for each of several words."""
    several = np.array([["film" in text, "x1" in text] for text in TEXTS]).astype(int)
    last = multiclass.OneVsRestClassifier(linear_model.LogisticRegression())
    model = make_pipeline(TfidfVectorizer(), last).fit(TEXTS, several)
    check_texts(model, serve(model), TEXTS[:40] + list(ODD))


def check_texts(model: Any, served: Served, texts: list[str]) -> None:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    check(model, served, {"text": array}, texts)


def test_pipelines_of_texts_inside_other_models(serve):
    """Each member counts with its own vocabulary, and each fold with its own."""
    words = make_pipeline(TfidfVectorizer(), svm.LinearSVC())
    letters = make_pipeline(CountVectorizer(analyzer="char"), naive_bayes.MultinomialNB())
    model = ensemble.VotingClassifier(
        [("w", calibration.CalibratedClassifierCV(words, cv=2)), ("c", letters)], voting="soft"
    ).fit(TEXTS, CLASSES)
    check_texts(model, serve(model), asked([], 60) + list(ODD) + TEXTS[:60])


@pytest.mark.parametrize(
    ("last", "has_names"),
    [(linear_model.LogisticRegression(max_iter=300), True),
     (ensemble.RandomForestClassifier(5, random_state=0), False)],
)  # fmt: skip
def test_a_column_of_texts_beside_others(last: Any, has_names: bool, serve, rng):
    """Numbers with holes, a category, two vectorisers of one column, and what nobody uses."""
    count = len(TEXTS)
    frame = pd.DataFrame({
        "age": np.where(rng.random(count) < 0.1, np.nan, rng.normal(40, 9, count)),
        "unused": rng.normal(size=count),
        "review": np.array(TEXTS, dtype=object),
        "city": rng.choice(np.array(["a", "b"], dtype=object), count),
    })  # fmt: skip
    place = (lambda name: name) if has_names else list(frame.columns).index
    columns = compose.ColumnTransformer([
        ("words", TfidfVectorizer(), place("review")),
        ("age", make_pipeline(preprocessing.StandardScaler()), [place("age")]),
        ("pairs", make_pipeline(CountVectorizer(ngram_range=(2, 2)),
                                feature_selection.SelectKBest(feature_selection.chi2, k=9)),
         place("review")),
        ("city", preprocessing.OneHotEncoder(handle_unknown="ignore"), [place("city")]),
        ("letters", CountVectorizer(analyzer="char"), place("city")),
    ], transformer_weights={"words": 2.0})  # fmt: skip
    frame["age"] = frame["age"].fillna(40.0)
    table = frame if has_names else frame.to_numpy(object)
    model = make_pipeline(columns, last).fit(table, CLASSES)
    served = serve(model)
    names = ["age", "review", "city"] if has_names else ["column_0", "column_2", "column_3"]
    assert sorted(spec.name for spec in served.signature.inputs) == sorted(names)
    texts = np.array([*asked([], 90), *ODD, *TEXTS[:50]], dtype=object)
    rows = pd.DataFrame({
        "age": rng.normal(40, 9, len(texts)), "unused": 0.0, "review": texts,
        "city": rng.choice(np.array(["a", "b", "?"], dtype=object), len(texts)),
    })  # fmt: skip
    inputs = {name: rows[key].to_numpy(float if key == "age" else object)[:, None]
              for name, key in zip(names, ("age", "review", "city"), strict=True)}  # fmt: skip
    check(model, served, inputs, rows if has_names else rows.to_numpy(object))


def squared(text: str) -> list[str]:
    """Cut a text in a way of one's own."""
    return text.split("²")


def loud(text: str) -> str:
    """Change a text in a way of one's own."""
    return text.upper()


class OwnVectorizer(TfidfVectorizer):
    """A vectoriser that does something else."""


@pytest.mark.parametrize(
    ("vectorizer", "reason"),
    [
        (TfidfVectorizer(tokenizer=squared), "TfidfVectorizer: tokenizer='squared' .* use token"),
        (CountVectorizer(preprocessor=loud), "preprocessor='loud' .* use lowercase"),
        (CountVectorizer(analyzer=squared), "analyzer='squared' .* use analyzer='word'"),
        (HashingVectorizer(n_features=64, strip_accents=loud), "strip_accents='loud'"),
        (TfidfVectorizer(token_pattern="(a+)+b"), re.escape("token_pattern='(a+)+b' is not among")),
        (CountVectorizer(dtype=np.uint8), "dtype=uint8 counts too few"),
        (CountVectorizer(ngram_range=(1, 99), max_features=9), r"ngram_range=\(1, 99\) must lie"),
        (OwnVectorizer(), "OwnVectorizer is a class of your own made from TfidfVectorizer"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_cannot_be_counted_exactly_is_refused_by_name(vectorizer: Any, reason: str, serve):
    """The reason, and what to use instead."""
    texts = [f"{text} aab" for text in TEXTS]
    model = make_pipeline(vectorizer, linear_model.LogisticRegression()).fit(texts, CLASSES)
    with pytest.raises(ConversionRefused, match=reason):
        serve(model)


def test_what_is_no_text_or_too_long_is_refused_by_its_place(serve):
    """A number, bytes that are not UTF-8 and a book are the caller's fault."""
    model = make_pipeline(TfidfVectorizer(), linear_model.LogisticRegression())
    served = serve(model.fit(TEXTS, CLASSES))
    for bad, reason in (
        (3, "element 1 is int, expected a string"),
        (None, "element 1 is NoneType, expected a string"),
        (b"\xff", "element 1 is not UTF-8: byte 0xff at 0"),
        ("x" * (MAX_CHARACTERS + 1), "has 262,145 characters, at most 262,144 are counted"),
    ):
        array = np.empty(2, dtype=object)
        array[:] = ["fine", bad]
        with pytest.raises(InputRefused, match=reason):
            served({"text": array})
    with pytest.raises(InputRefused, match="input 'text' is missing"):
        served({})


def test_a_sample_of_texts_is_compared_too(serve, tmp_path):
    """A file of one column is the texts, whatever its name."""
    path = tmp_path / "reviews.csv"
    pd.DataFrame({"review": TEXTS}).to_csv(path, index=False)
    model = make_pipeline(TfidfVectorizer(), linear_model.LogisticRegression())
    served = serve(model.fit(TEXTS, CLASSES), sample=path)
    assert served.parity["rows"] >= 2000 + len(TEXTS)
    assert served.parity["golden"][0]["inputs"]["text"] == TEXTS[0]


@pytest.mark.timeout(40)
def test_known_patterns_take_a_time_that_grows_with_the_text():
    """A pattern whose time grew with its square would take minutes for one of these."""
    length = 5_000
    texts = ["a" * length + "é", "a'" * length, "-" * length + "a", "é" * length,
             "a" + "." * length, "_" * length + "'"]  # fmt: skip
    patterns = [p for p in sorted(TOKEN_PATTERNS) if "(?u)" not in p and r"\b" in p]
    assert len(patterns) > 100
    for pattern in patterns:
        found = re.compile(pattern)
        for text in texts:
            assert len(found.findall(text)) <= len(text)
