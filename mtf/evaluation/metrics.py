"""Metrics of texts and classes, by T5's names and with T5's conventions.

Scores are percentages. What each metric compares, and its settings, are those of T5 (Raffel et al.
2020; t5/evaluation/metrics.py). Libraries compute what they have; exact match and F1 of words
follow the scripts of SQuAD, TriviaQA and CoQA, which no library has without its data set. The
accuracy of ranked answer choices is in `rank.py`.
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
Answers = Sequence[str | Sequence[str]]  # for each example one answer, or several right ones
Classes = Sequence[int]
Records = Sequence[Mapping[str, Any]]
_Function = Callable[[Sequence[Any], Sequence[Any]], Scores]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# SQuAD's script deletes punctuation; TriviaQA's makes spaces of it, and of more quotation marks.
_SQUAD_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
_TRIVIA_QA_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation + "‘’´`_"), " ")
_NOT_A_NUMBER = -1.0


@dataclass(frozen=True)
class Metric:
    """How predictions are compared with targets.

    Attributes:
      function: (targets, predictions) → the values of `scores`.
      scores: the names of the scores.
      compares: texts; class indices, -1 where a text is not a class; or texts or classes with
        targets that have more than the right answer ("example").
      library: a module of the extra `eval` that computes it; None: none is needed.
    """

    function: _Function
    scores: tuple[str, ...]
    compares: Compares
    library: str | None


METRICS: dict[str, Metric] = {}


def _metric(
    *scores: str, compares: Compares = "text", library: str | None = None
) -> Callable[[_Function], _Function]:
    """Adds a function to `METRICS`; without `scores` it has one, of its own name."""

    def register(function: _Function) -> _Function:
        name = function.__name__
        METRICS[name] = Metric(function, scores or (name,), compares, library)
        return function

    return register


def compute(name: str, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Compares predictions with targets.

    Args:
      name: a key of `METRICS`.
      targets: one for each prediction: a text, or what the metric's own function says.
      predictions: texts, class indices or numbers.

    Returns:
      The metric's scores by their names, 0 to 100 (edit distances: words).

    Raises:
      UserError: there is no such metric, targets and predictions are not equally many or none, or
        the library that computes it is not installed.
    """
    metric = find(name)
    if len(targets) != len(predictions):
        raise UserError(
            f"metric {name}: {len(targets)} targets and {len(predictions)} predictions; expected "
            "as many of both"
        )
    if not targets:
        raise UserError(f"metric {name}: there is nothing to compare; expected an example or more")
    require(name)
    values = map(float, metric.function(targets, predictions))
    return dict(zip(metric.scores, values, strict=True))


def find(name: str) -> Metric:
    """Returns a metric by its name.

    Raises:
      UserError: there is no such metric.
    """
    if name not in METRICS:
        raise UserError(
            f"there is no metric {name!r}; expected one of {', '.join(METRICS)}."
            f"{did_you_mean(name, METRICS)}"
        )
    return METRICS[name]


def require(name: str) -> None:
    """Imports the library that computes a metric, where it needs one.

    Raises:
      UserError: it is not installed; says how to install it.
    """
    if (library := METRICS[name].library) is not None:
        import_extra(library, f"metric {name}", extra="eval")


@_metric()
def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Returns how many predictions equal their targets."""
    same = sum(target == found for target, found in zip(targets, predictions, strict=True))
    return [100 * same / len(targets)]


@_metric()
def sequence_accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """`accuracy` under T5's name for whole sequences."""
    return accuracy(targets, predictions)


@_metric(compares="class")
def f1(targets: Classes, predictions: Classes) -> Scores:
    """F1 of class 1. A prediction that is neither 0 nor 1 counts as the wrong one of them."""
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
    """Matthews' correlation of classes."""
    from sklearn import metrics

    return [100 * metrics.matthews_corrcoef(list(targets), list(predictions))]


@_metric("auc-roc", "auc-pr", compares="class")
def auc(targets: Classes, predictions: Sequence[float]) -> Scores:
    """Areas under the ROC and the precision-recall curve, of scores for class 1.

    T5's `auc` is not in percent, but that of its `rank_classification` is: so is this. Without
    examples of class 1 both are NaN, without others the first.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    is_one = np.equal(targets, 1)
    if not is_one.any():
        return [math.nan, math.nan]
    roc = math.nan if is_one.all() else roc_auc_score(is_one, predictions)
    return [100 * roc, 100 * average_precision_score(is_one, predictions)]


@_metric("em", "f1")
def squad(targets: Answers, predictions: Texts) -> Scores:
    """Exact match and F1 of words as in SQuAD 1.1's script (Rajpurkar et al. 2016).

    Targets are answers, or several right ones, of which the best counts.
    """
    return _exact_match_and_f1(targets, predictions, normalize_squad)


@_metric("em", "f1", compares="example")
def span_squad(targets: Records, predictions: Texts) -> Scores:
    """`squad` of predictions such as "start: 3 end: 6": words of the context.

    Targets have `answers` and `context`. A prediction of another form is an empty answer.
    """
    spans = [
        _span(target["context"], text) for target, text in zip(targets, predictions, strict=True)
    ]
    return squad([target["answers"] for target in targets], spans)


@_metric("em", "f1")
def trivia_qa(targets: Answers, predictions: Texts) -> Scores:
    """Exact match and F1 of words as in TriviaQA's script (Joshi et al. 2017)."""
    return _exact_match_and_f1(targets, predictions, normalize_trivia_qa)


@_metric("em", "f1", compares="example")
def record(targets: Records, predictions: Texts) -> Scores:
    """`squad` of ReCoRD: of the examples of one `group` (a passage's query) the first counts.

    Targets have `group` and `value`, the right answers.
    """
    first: dict[Any, tuple[Sequence[str], str]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        first.setdefault(target["group"], (target["value"], prediction))
    answers, texts = zip(*first.values(), strict=True)
    return squad(answers, texts)


@_metric("f1")
def coqa_f1(targets: Answers, predictions: Texts) -> Scores:
    """Mean F1 of words, the best of several answers (Reddy et al. 2019); two empty ones agree."""

    def score(answer: str, prediction: str) -> float:
        return 1.0 if not answer and not prediction else _word_f1(answer, prediction)

    return [_mean_of_best(targets, predictions, normalize_squad, score)]


@_metric("f1", compares="class")
def multirc_f1_over_all_answers(targets: Sequence[Any], predictions: Classes) -> Scores:
    """`f1` over all answers of MultiRC (Khashabi et al. 2018).

    Targets are classes, or have them as `value`.
    """
    return f1([t["value"] if isinstance(t, Mapping) else t for t in targets], predictions)


@_metric("exact_match", compares="example")
def multirc_exact_match(targets: Records, predictions: Classes) -> Scores:
    """Returns how many questions of MultiRC have all of their answers right.

    Targets have `group`, the question, and `value`, a class.
    """
    right: dict[Any, bool] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        group = target["group"]
        right[group] = right.get(group, True) and target["value"] == prediction
    return [100 * sum(right.values()) / len(right)]


@_metric(library="sacrebleu")
def bleu(targets: Answers, predictions: Texts) -> Scores:
    """BLEU of a corpus: sacrebleu with the tokenizer `intl` and exponential smoothing.

    Targets are texts, or as many references for each prediction.
    """
    from sacrebleu import corpus_bleu

    references = [[t] if isinstance(t, str) else list(t) for t in targets]
    found = corpus_bleu(
        list(predictions),
        [list(stream) for stream in zip(*references, strict=True)],
        smooth_method="exp",
        tokenize="intl",
        use_effective_order=False,
    )
    return [found.score]


@_metric("rouge1", "rouge2", "rougeLsum", library="rouge_score.rouge_scorer")
def rouge(targets: Texts, predictions: Texts) -> Scores:
    """Mean F of ROUGE-1, ROUGE-2 and summary-level ROUGE-L: rouge-score, lower case, no stemmer.

    A line is a sentence, and so is what ends with " . ". T5's `rouge` takes the middle of a
    bootstrap, which varies from call to call, where this takes the mean (T5's `rouge_mean`).
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
    """Pearson's correlation of numbers; a text that is not a number counts as -1."""
    from scipy.stats import pearsonr

    return [100 * pearsonr(_numbers(targets), _numbers(predictions))[0]]


@_metric()
def spearman_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
    """Spearman's correlation of numbers; a text that is not a number counts as -1."""
    from scipy.stats import spearmanr

    return [100 * spearmanr(_numbers(targets), _numbers(predictions))[0]]


@_metric(
    *("min_edit", "max_edit", "mean_edit", "median_edit", "sum_edit"),
    library="nltk.metrics.distance",
)
def edit_distance(targets: Texts, predictions: Texts) -> Scores:
    """Words to insert, delete or replace, in lower case (nltk)."""
    from nltk.metrics.distance import edit_distance as distance

    words = [[re.split(r"[^\w]", t.lower()) for t in texts] for texts in (targets, predictions)]
    found = [distance(target, prediction) for target, prediction in zip(*words, strict=True)]
    return [min(found), max(found), statistics.mean(found), statistics.median(found), sum(found)]


def normalize_squad(text: str) -> str:
    """Returns what SQuAD's script compares: lower case without punctuation and articles."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_SQUAD_PUNCTUATION)).split())


def normalize_trivia_qa(text: str) -> str:
    """Returns what TriviaQA's script compares: as SQuAD's, but punctuation becomes a space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_TRIVIA_QA_PUNCTUATION)).split())


def _word_f1(target: str, prediction: str) -> float:
    """F1 of the words that two normalized texts have in common; 0 where there are none."""
    wanted, found = target.split(), prediction.split()
    num_common = (Counter(wanted) & Counter(found)).total()
    return 2 * num_common / (len(wanted) + len(found)) if num_common else 0.0


def _exact_match_and_f1(
    targets: Answers, predictions: Texts, normalize: Callable[[str], str]
) -> Scores:
    scores = (lambda a, b: float(a == b), _word_f1)
    return [_mean_of_best(targets, predictions, normalize, score) for score in scores]


def _mean_of_best(
    targets: Answers,
    predictions: Texts,
    normalize: Callable[[str], str],
    score: Callable[[str, str], float],
) -> float:
    """Returns the mean, in percent, of each prediction's best score over its right answers."""
    best = []
    for target, text in zip(targets, map(normalize, predictions), strict=True):
        answers = [target] if isinstance(target, str) else target
        best.append(max(score(normalize(answer), text) for answer in answers))
    return 100 * math.fsum(best) / len(best)


def _span(context: str, prediction: str) -> str:
    words, found = (re.sub(r"\W", " ", text).split() for text in (context, prediction))
    if len(found) < 4 or not (found[1].isdecimal() and found[3].isdecimal()):
        return ""
    return " ".join(words[int(found[1]) : int(found[3]) + 1])


def _numbers(values: Sequence[Any]) -> list[float]:
    def number(value: Any) -> float:
        try:
            return float(value)
        except ValueError:
            return _NOT_A_NUMBER

    return [number(value) for value in values]
