"""Defines the metrics that compare texts or classes, with T5's names and conventions.

Scores are percentages. Each metric has the same inputs and settings as in T5 (Raffel et al. 2020;
t5/evaluation/metrics.py). Exact match and word F1 follow the scripts of SQuAD, TriviaQA and CoQA;
most other metrics are computed by libraries. The metrics of ranked answer choices are in `rank.py`.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Compares = Literal["text", "class"]
Scores = Sequence[float]
Texts = Sequence[str]
Answers = Sequence[str | Sequence[str]]  # one or more correct answers per example
Classes = Sequence[int]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# SQuAD's script deletes punctuation. TriviaQA's script replaces punctuation, including typographic
# quotation marks, with spaces.
_Punctuation = dict[int, str | None]
_SQUAD_PUNCTUATION: _Punctuation = dict.fromkeys(map(ord, string.punctuation))
_TRIVIA_QA_PUNCTUATION: _Punctuation = dict.fromkeys(map(ord, string.punctuation + "‘’´`_"), " ")


@dataclass(frozen=True)
class Metric:
    """A metric that compares predictions with targets.

    Attributes:
      function: function that takes targets and predictions and returns the values of `scores`. A
        custom function may return a number instead of a sequence of one number.
      scores: names of the scores.
      compares: "text" if the metric compares texts, "class" if it compares class indices. The index
        of a text that is not a class is -1.
      module: name of the module that the metric needs from the extra `eval`; None if it needs none.
      best: whether the largest or the smallest value is the best.
      prompt_names: names of the metric in the metadata of prompts.
    """

    function: Callable[..., Any]
    scores: tuple[str, ...]
    compares: Compares = "text"
    module: str | None = None
    best: Literal["max", "min"] = "max"
    prompt_names: tuple[str, ...] = ()


# Name → metric. The name of a metric is that of its function; that of a custom metric starts with
# the function's module.
METRICS: dict[str, Metric] = {}


def metric(*scores: str, **fields: Any) -> Callable[[_Function], _Function]:
    """Returns a decorator that defines a metric.

    Args:
      scores: names of the scores; by default, the name of the function.
      fields: other attributes of the `Metric`.
    """

    def define(function: _Function) -> _Function:
        name = function.__name__
        is_custom = function.__module__ != __name__
        METRICS[f"{function.__module__}.{name}" if is_custom else name] = Metric(
            function, scores or (name,), **fields
        )
        return function

    return define


def in_prompts() -> dict[str, str]:
    """Returns a dict that maps the metrics' names in the metadata of prompts to their names."""
    return {other: name for name, each in METRICS.items() for other in each.prompt_names}


@metric(prompt_names=("Accuracy", "Other"))
def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns the percentage of predictions that equal their targets."""
    same = sum(target == found for target, found in zip(targets, predictions, strict=True))
    return [100 * same / len(targets)]


@metric(prompt_names=("Sequence Accuracy",))
def sequence_accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns `accuracy`; T5 has both names."""
    return accuracy(targets, predictions)


@metric(compares="class")
def f1(targets: Classes, predictions: Classes) -> Scores:
    """Returns the F1 score of class 1; predictions other than 0 and 1 count as wrong."""
    checked = [
        found if found in (0, 1) else 1 - target
        for target, found in zip(targets, predictions, strict=True)
    ]
    return [100 * class_f1(targets, checked, 2)[1]]


@metric(compares="class")
def mean_3class_f1(targets: Classes, predictions: Classes) -> Scores:
    """Returns the mean of the F1 scores of classes 0, 1 and 2."""
    return [100 * math.fsum(class_f1(targets, predictions, 3)) / 3]


def _sklearn() -> Any:
    from sklearn import metrics  # Slow to import.

    return metrics


def class_f1(targets: Classes, predictions: Classes, num_classes: int) -> list[float]:
    """Returns the F1 score (0 to 1) of each class; a class that does not occur has a score of 0."""
    classes = list(range(num_classes))
    scores = _sklearn().f1_score(
        targets, predictions, labels=classes, average=None, zero_division=0.0
    )
    return [float(score) for score in scores]


@metric(compares="class")
def matthews_corrcoef(targets: Classes, predictions: Classes) -> Scores:
    """Returns the Matthews correlation coefficient."""
    return [100 * _sklearn().matthews_corrcoef(list(targets), list(predictions))]


@metric("auc-roc", "auc-pr", compares="class", prompt_names=("AUC",))
def auc(targets: Classes, predictions: Sequence[float]) -> Scores:
    """Returns the areas under the ROC curve and the precision-recall curve.

    The predictions are scores for class 1. The areas are percentages, as in T5's
    `rank_classification` but unlike in T5's `auc`. Both areas are NaN if no example is of class 1,
    and the area under the ROC curve is NaN if all examples are of class 1.
    """
    import numpy as np  # Showing a recipe needs no NumPy.

    is_one = np.equal(targets, 1)
    if not is_one.any():
        return [math.nan, math.nan]
    sklearn = _sklearn()
    roc = math.nan if is_one.all() else sklearn.roc_auc_score(is_one, predictions)
    return [100 * roc, 100 * sklearn.average_precision_score(is_one, predictions)]


@metric("em", "f1", prompt_names=("Squad",))
def squad(targets: Answers, predictions: Texts) -> Scores:
    """Returns exact match and word F1, as computed by SQuAD 1.1's script (Rajpurkar et al. 2016).

    If there are several correct answers, the best match counts.
    """
    return _exact_match_and_f1(targets, predictions, _SQUAD_PUNCTUATION)


@metric("em", "f1", prompt_names=("Trivia QA",))
def trivia_qa(targets: Answers, predictions: Texts) -> Scores:
    """Returns exact match and word F1, as computed by TriviaQA's script (Joshi et al. 2017)."""
    return _exact_match_and_f1(targets, predictions, _TRIVIA_QA_PUNCTUATION)


@metric("f1", prompt_names=("COQA F1",))
def coqa_f1(targets: Answers, predictions: Texts) -> Scores:
    """Returns the mean word F1 as in CoQA (Reddy et al. 2019); two empty texts have an F1 of 1."""

    def score(answer: str, prediction: str) -> float:
        return 1.0 if not answer and not prediction else _word_f1(answer, prediction)

    return [_mean_of_best(targets, predictions, _SQUAD_PUNCTUATION, score)]


@metric("f1", compares="class", prompt_names=("MultiRC",))
def multirc_f1_over_all_answers(targets: Classes, predictions: Classes) -> Scores:
    """Returns `f1` over all answers of MultiRC (Khashabi et al. 2018)."""
    return f1(targets, predictions)


@metric(module="sacrebleu", prompt_names=("BLEU",))
def bleu(targets: Answers, predictions: Texts) -> Scores:
    """Returns the corpus BLEU of sacrebleu with the tokenizer `intl` and exponential smoothing.

    Each target is a text or a list of references; all lists must have the same length.
    """
    from sacrebleu import corpus_bleu

    references = [[t] if isinstance(t, str) else list(t) for t in targets]
    streams = [list(stream) for stream in zip(*references, strict=True)]
    options = {"smooth_method": "exp", "tokenize": "intl", "use_effective_order": False}
    return [corpus_bleu(list(predictions), streams, **options).score]


@metric(
    *("rouge1", "rouge2", "rougeLsum"),
    module="rouge_score.rouge_scorer",
    prompt_names=("ROUGE",),
)
def rouge(targets: Texts, predictions: Texts) -> Scores:
    """Returns the mean F1 of ROUGE-1, ROUGE-2 and summary-level ROUGE-L, without stemming.

    The scores come from the library rouge-score. Sentences end with a newline or " . ". The metric
    equals T5's `rouge_mean`. T5's `rouge` is the median over bootstrap samples, so it varies
    between calls.
    """
    from rouge_score.rouge_scorer import RougeScorer

    names = METRICS["rouge"].scores
    scorer = RougeScorer(names)
    found = [
        scorer.score(target.replace(" . ", " .\n"), prediction.replace(" . ", " .\n"))
        for target, prediction in zip(targets, predictions, strict=True)
    ]
    return [100 * sum(scores[name].fmeasure for scores in found) / len(found) for name in names]


@metric(prompt_names=("Pearson Correlation",))
def pearson_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns the Pearson correlation of numbers; a text that is not a number counts as -1."""
    from scipy.stats import pearsonr

    return [100 * pearsonr(list(map(_number, targets)), list(map(_number, predictions)))[0]]


@metric(prompt_names=("Spearman Correlation",))
def spearman_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns the Spearman correlation of numbers; a text that is not a number counts as -1."""
    from scipy.stats import spearmanr

    return [100 * spearmanr(list(map(_number, targets)), list(map(_number, predictions)))[0]]


@metric(
    *("min_edit", "max_edit", "mean_edit", "median_edit", "sum_edit"),
    module="nltk.metrics.distance",
    best="min",
    prompt_names=("Edit Distance",),
)
def edit_distance(targets: Texts, predictions: Texts) -> Scores:
    """Returns statistics of nltk's edit distance between lowercase texts, counted in words."""
    from statistics import mean, median  # Showing a recipe needs no statistics.

    from nltk.metrics.distance import edit_distance as distance

    words = [[re.split(r"[^\w]", t.lower()) for t in texts] for texts in (targets, predictions)]
    found = [distance(target, prediction) for target, prediction in zip(*words, strict=True)]
    return [min(found), max(found), mean(found), median(found), sum(found)]


def _normalize(text: str, punctuation: _Punctuation) -> str:
    """Converts a text to lowercase and removes articles, `punctuation` and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(punctuation)).split())


def _word_f1(target: str, prediction: str) -> float:
    """Returns the word F1 of two normalized texts, from 0 to 1."""
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
    """Scores each prediction against its best-matching answer; returns the mean in percent."""
    best = []
    for target, prediction in zip(targets, predictions, strict=True):
        text = _normalize(prediction, punctuation)
        answers = [target] if isinstance(target, str) else target
        best.append(max(score(_normalize(answer, punctuation), text) for answer in answers))
    return 100 * math.fsum(best) / len(best)


def _number(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        return -1.0
