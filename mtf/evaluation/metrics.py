"""Metrics of texts and classes, with T5's names and conventions.

Scores are percentages. Inputs and settings of each metric are those of T5 (Raffel et al. 2020;
t5/evaluation/metrics.py). Exact match and F1 of words follow the scripts of SQuAD, TriviaQA and
CoQA; libraries compute most others. `rank.py` has the metrics of ranked answer choices.
"""

from __future__ import annotations

import math
import re
import statistics
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mtf.errors import UserError, did_you_mean
from mtf.extras import import_extra

Compares = Literal["text", "class", "example"]
Scores = Sequence[float]
Texts = Sequence[str]
Answers = Sequence[str | Sequence[str]]  # one correct answer, or several, for each example
Classes = Sequence[int]
Records = Sequence[Mapping[str, Any]]
_Function = Callable[[Sequence[Any], Sequence[Any]], Scores]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# SQuAD's script deletes punctuation; TriviaQA's replaces it and more quotation marks by spaces.
_Punctuation = dict[int, str | None]
_SQUAD_PUNCTUATION: _Punctuation = dict.fromkeys(map(ord, string.punctuation))
_TRIVIA_QA_PUNCTUATION: _Punctuation = dict.fromkeys(map(ord, string.punctuation + "‘’´`_"), " ")
_NOT_A_NUMBER = -1.0


@dataclass(frozen=True)
class Metric:
    """A comparison of predictions with targets.

    Attributes:
      function: (targets, predictions) → the values of `scores`.
      scores: names of the scores.
      compares: "text"; "class": class indices, -1 for a text that is no class; or "example": the
        targets contain more than the correct answer.
      module: module of the extra `eval` that computes it, or None.
    """

    function: _Function
    scores: tuple[str, ...]
    compares: Compares
    module: str | None


METRICS: dict[str, Metric] = {}


def _metric(
    *scores: str, compares: Compares = "text", module: str | None = None
) -> Callable[[_Function], _Function]:
    """Adds a function to `METRICS`; `scores` defaults to its name."""

    def register(function: _Function) -> _Function:
        name = function.__name__
        METRICS[name] = Metric(function, scores or (name,), compares, module)
        return function

    return register


def compute(name: str, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Returns the scores of a metric of `METRICS` by name, 0 to 100 (edit distances: words).

    Predictions are texts, class indices or numbers. Raises UserError if the metric does not exist,
    its library is not installed, or the numbers of targets and predictions differ or are 0.
    """
    metric = find(name)
    if len(targets) != len(predictions):
        raise UserError(
            f"metric {name}: {len(targets)} targets and {len(predictions)} predictions; expected "
            "the same number of each"
        )
    if not targets:
        raise UserError(f"metric {name}: there are no examples; expected at least one")
    require(name)
    values = map(float, metric.function(targets, predictions))
    return dict(zip(metric.scores, values, strict=True))


def find(name: str) -> Metric:
    """Returns a metric by name; raises UserError if it does not exist.

    A name with a dot is a function of the user's, `my_parts.my_metric`, of the texts of targets and
    predictions; it returns a number.
    """
    if "." in name:
        return _own(name)
    if name not in METRICS:
        raise UserError(
            f"there is no metric {name!r}; expected one of {', '.join(METRICS)}, or a function of "
            f"your own, such as my_parts.my_metric.{did_you_mean(name, METRICS)}"
        )
    return METRICS[name]


def _own(name: str) -> Metric:
    from mtf.config import lookup  # Imports Fiddle, which training does not need.

    function = lookup.find(name, "metric")
    if not callable(function):
        raise UserError(f"metric {name} is a {type(function).__name__}; expected a function")

    def checked(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        value = function(targets, predictions)
        if not isinstance(value, int | float | np.number):
            raise UserError(f"metric {name} returned a {type(value).__name__}; expected a number")
        return [float(value)]

    return Metric(checked, (name.rpartition(".")[2],), "text", None)


def score_names(names: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns (metric, score) → unique name of the score: with the metric before it if needed."""
    scores = [(name, score) for name in names for score in find(name).scores]
    counts = Counter(score for _, score in scores)
    return {
        (name, score): score if counts[score] == 1 else f"{name}/{score}" for name, score in scores
    }


def require(name: str) -> None:
    """Imports the library of a metric; raises UserError if it is not installed."""
    if (module := find(name).module) is not None:
        import_extra(module, f"metric {name}", extra="eval")


@_metric()
def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns the share of predictions that equal their targets."""
    same = sum(target == found for target, found in zip(targets, predictions, strict=True))
    return [100 * same / len(targets)]


@_metric()
def sequence_accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns `accuracy`, by T5's name for sequences."""
    return accuracy(targets, predictions)


@_metric(compares="class")
def f1(targets: Classes, predictions: Classes) -> Scores:
    """Returns the F1 of class 1. A prediction other than 0 and 1 counts as the wrong class."""
    checked = [
        found if found in (0, 1) else 1 - target
        for target, found in zip(targets, predictions, strict=True)
    ]
    return [100 * class_f1(targets, checked, 2)[1]]


@_metric(compares="class")
def mean_3class_f1(targets: Classes, predictions: Classes) -> Scores:
    """Returns the mean of the F1 of classes 0, 1 and 2."""
    return [100 * statistics.mean(class_f1(targets, predictions, 3))]


def class_f1(targets: Classes, predictions: Classes, num_classes: int) -> list[float]:
    """Returns the F1 of each class, 0 to 1; 0 for a class that does not occur."""
    from sklearn.metrics import f1_score

    classes = list(range(num_classes))
    scores = f1_score(targets, predictions, labels=classes, average=None, zero_division=0.0)
    return [float(score) for score in scores]


@_metric(compares="class")
def matthews_corrcoef(targets: Classes, predictions: Classes) -> Scores:
    """Returns Matthews' correlation coefficient."""
    from sklearn import metrics

    return [100 * metrics.matthews_corrcoef(list(targets), list(predictions))]


@_metric("auc-roc", "auc-pr", compares="class")
def auc(targets: Classes, predictions: Sequence[float]) -> Scores:
    """Returns the areas under the ROC and precision-recall curves of scores for class 1.

    In percent, as in T5's `rank_classification` (but not its `auc`). Without examples of class 1,
    both are NaN; without other examples, the first is.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    is_one = np.equal(targets, 1)
    if not is_one.any():
        return [math.nan, math.nan]
    roc = math.nan if is_one.all() else roc_auc_score(is_one, predictions)
    return [100 * roc, 100 * average_precision_score(is_one, predictions)]


@_metric("em", "f1")
def squad(targets: Answers, predictions: Texts) -> Scores:
    """Returns exact match and F1 of words as in SQuAD 1.1's script (Rajpurkar et al. 2016).

    Of several correct answers, the best match counts.
    """
    return _exact_match_and_f1(targets, predictions, _SQUAD_PUNCTUATION)


@_metric("em", "f1", compares="example")
def span_squad(targets: Records, predictions: Texts) -> Scores:
    """Returns `squad` of predictions such as "start: 3 end: 6", words of the context.

    Targets have `answers` and `context`. Any other prediction is an empty answer.
    """
    spans = [
        _span(target["context"], text) for target, text in zip(targets, predictions, strict=True)
    ]
    return squad([target["answers"] for target in targets], spans)


@_metric("em", "f1")
def trivia_qa(targets: Answers, predictions: Texts) -> Scores:
    """Returns exact match and F1 of words as in TriviaQA's script (Joshi et al. 2017)."""
    return _exact_match_and_f1(targets, predictions, _TRIVIA_QA_PUNCTUATION)


@_metric("em", "f1", compares="example")
def record(targets: Records, predictions: Texts) -> Scores:
    """Returns `squad` of ReCoRD: the first example of each `group` (a passage's query) counts.

    Targets have `group` and `value`, the correct answers.
    """
    first: dict[Any, tuple[Sequence[str], str]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        first.setdefault(target["group"], (target["value"], prediction))
    answers, texts = zip(*first.values(), strict=True)
    return squad(answers, texts)


@_metric("f1")
def coqa_f1(targets: Answers, predictions: Texts) -> Scores:
    """Returns the mean F1 of words, 1 for two empty texts (Reddy et al. 2019)."""

    def score(answer: str, prediction: str) -> float:
        return 1.0 if not answer and not prediction else _word_f1(answer, prediction)

    return [_mean_of_best(targets, predictions, _SQUAD_PUNCTUATION, score)]


@_metric("f1", compares="class")
def multirc_f1_over_all_answers(targets: Sequence[Any], predictions: Classes) -> Scores:
    """Returns `f1` over all answers of MultiRC (Khashabi et al. 2018).

    Targets are classes, or have a class as `value`.
    """
    return f1([t["value"] if isinstance(t, Mapping) else t for t in targets], predictions)


@_metric("exact_match", compares="example")
def multirc_exact_match(targets: Records, predictions: Classes) -> Scores:
    """Returns the share of MultiRC's questions whose answers are all classified correctly.

    Targets have `group`, the question, and `value`, a class.
    """
    right: dict[Any, bool] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        group = target["group"]
        right[group] = right.get(group, True) and target["value"] == prediction
    return [100 * sum(right.values()) / len(right)]


@_metric(module="sacrebleu")
def bleu(targets: Answers, predictions: Texts) -> Scores:
    """Returns corpus BLEU by sacrebleu, with the tokenizer `intl` and exponential smoothing.

    Targets are texts, or several references, the same number for each prediction.
    """
    from sacrebleu import corpus_bleu

    references = [[t] if isinstance(t, str) else list(t) for t in targets]
    streams = [list(stream) for stream in zip(*references, strict=True)]
    options = {"smooth_method": "exp", "tokenize": "intl", "use_effective_order": False}
    return [corpus_bleu(list(predictions), streams, **options).score]


@_metric("rouge1", "rouge2", "rougeLsum", module="rouge_score.rouge_scorer")
def rouge(targets: Texts, predictions: Texts) -> Scores:
    """Returns the mean F of ROUGE-1, ROUGE-2 and summary-level ROUGE-L by rouge-score, no stemmer.

    Sentences end in a newline or " . ". This is T5's `rouge_mean`; T5's `rouge` is the median of a
    bootstrap, which varies between calls.
    """
    from rouge_score.rouge_scorer import RougeScorer

    names = METRICS["rouge"].scores
    scorer = RougeScorer(names)
    found = [
        scorer.score(target.replace(" . ", " .\n"), prediction.replace(" . ", " .\n"))
        for target, prediction in zip(targets, predictions, strict=True)
    ]
    return [100 * sum(scores[name].fmeasure for scores in found) / len(found) for name in names]


@_metric()
def pearson_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns Pearson's correlation of numbers; a text that is not a number counts as -1."""
    from scipy.stats import pearsonr

    return [100 * pearsonr(list(map(_number, targets)), list(map(_number, predictions)))[0]]


@_metric()
def spearman_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns Spearman's correlation of numbers; a text that is not a number counts as -1."""
    from scipy.stats import spearmanr

    return [100 * spearmanr(list(map(_number, targets)), list(map(_number, predictions)))[0]]


@_metric(
    *("min_edit", "max_edit", "mean_edit", "median_edit", "sum_edit"),
    module="nltk.metrics.distance",
)
def edit_distance(targets: Texts, predictions: Texts) -> Scores:
    """Returns statistics of the edit distance in lowercase words (nltk)."""
    from nltk.metrics.distance import edit_distance as distance

    words = [[re.split(r"[^\w]", t.lower()) for t in texts] for texts in (targets, predictions)]
    found = [distance(target, prediction) for target, prediction in zip(*words, strict=True)]
    return [min(found), max(found), statistics.mean(found), statistics.median(found), sum(found)]


def _normalize(text: str, punctuation: _Punctuation) -> str:
    """Returns lowercase text without punctuation and articles, as the scripts compare it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(punctuation)).split())


def _word_f1(target: str, prediction: str) -> float:
    """Returns the F1 of the words that two normalized texts share."""
    wanted, found = target.split(), prediction.split()
    num_common = (Counter(wanted) & Counter(found)).total()
    return 2 * num_common / (len(wanted) + len(found)) if num_common else 0.0


def _exact_match_and_f1(targets: Answers, predictions: Texts, punctuation: _Punctuation) -> Scores:
    scores = (lambda a, b: float(a == b), _word_f1)
    return [_mean_of_best(targets, predictions, punctuation, score) for score in scores]


def _mean_of_best(
    targets: Answers,
    predictions: Texts,
    punctuation: _Punctuation,
    score: Callable[[str, str], float],
) -> float:
    """Returns the mean in percent of each prediction's best score over its correct answers."""
    best = []
    for target, prediction in zip(targets, predictions, strict=True):
        text = _normalize(prediction, punctuation)
        answers = [target] if isinstance(target, str) else target
        best.append(max(score(_normalize(answer, punctuation), text) for answer in answers))
    return 100 * math.fsum(best) / len(best)


def _span(context: str, prediction: str) -> str:
    words, found = (re.sub(r"\W", " ", text).split() for text in (context, prediction))
    if len(found) < 4 or not (found[1].isdecimal() and found[3].isdecimal()):
        return ""
    return " ".join(words[int(found[1]) : int(found[3]) + 1])


def _number(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        return _NOT_A_NUMBER
