"""Metrics of texts and classes, by T5's names and with T5's conventions.

Scores are percentages. What each metric compares, and its settings, are those of T5 (Raffel et al.
2020; t5/evaluation/metrics.py); the libraries that compute them come with the extra `eval`. The
accuracy of ranked answer choices is not here: it is made of likelihoods.
"""

from __future__ import annotations

import math
import re
import statistics
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mtf.errors import UserError, did_you_mean
from mtf.evaluation import rank
from mtf.extras import import_extra

MetricValues = dict[str, float]
Compares = Literal["text", "class", "example"]

# Both scripts take these off; SQuAD's leaves nothing in the place of punctuation, TriviaQA's a
# space, and TriviaQA's knows some quotation marks more.
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_TRIVIA_QA_PUNCTUATION = string.punctuation + "‘’´`_"
_ROUGE = ("rouge1", "rouge2", "rougeLsum")
_NOT_A_NUMBER = -1.0


@dataclass(frozen=True)
class Metric:
    """How predictions are compared with targets.

    Attributes:
      function: (targets, predictions) → scores.
      scores: the names of the scores that it gives.
      compares: texts; class indices, -1 where a text is not a class; or texts or classes with
        targets that have more than the right answer ("example").
    """

    function: Callable[[Sequence[Any], Sequence[Any]], MetricValues]
    scores: tuple[str, ...]
    compares: Compares = "text"


def compute(name: str, targets: Sequence[Any], predictions: Sequence[Any]) -> MetricValues:
    """Compares predictions with targets.

    Args:
      name: of a metric, one of `METRICS`.
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
    return metric.function(targets, predictions)


def find(name: str) -> Metric:
    """Returns a metric by its name.

    Raises:
      UserError: there is none of that name.
    """
    if name not in METRICS:
        raise UserError(
            f"there is no metric {name!r}; expected one of {', '.join(METRICS)}."
            f"{did_you_mean(name, METRICS)}"
        )
    return METRICS[name]


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> MetricValues:
    """Returns how many predictions equal their targets."""
    return {"accuracy": _percent_equal(targets, predictions)}


def sequence_accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> MetricValues:
    """Returns the same, under T5's name for whole sequences."""
    return {"sequence_accuracy": _percent_equal(targets, predictions)}


def bleu(targets: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> MetricValues:
    """BLEU of a corpus: sacrebleu with the tokenizer `intl` and exponential smoothing.

    Targets are texts, or as many references for each prediction.
    """
    sacrebleu = _library("bleu")
    references = [[t] if isinstance(t, str) else list(t) for t in targets]
    found = sacrebleu.corpus_bleu(
        list(predictions),
        [list(stream) for stream in zip(*references, strict=True)],
        smooth_method="exp",
        force=False,
        lowercase=False,
        tokenize="intl",
        use_effective_order=False,
    )
    return {"bleu": float(found.score)}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> MetricValues:
    """Mean F of ROUGE-1, ROUGE-2 and summary-level ROUGE-L: rouge-score, lower case, no stemmer.

    A line is a sentence, and so is what ends with " . ". T5's `rouge` takes the middle of a
    bootstrap, which varies from call to call, where this takes the mean (T5's `rouge_mean`).
    """
    scorer = _library("rouge").RougeScorer(_ROUGE)
    sums: dict[str, float] = defaultdict(float)
    for target, prediction in zip(targets, predictions, strict=True):
        found = scorer.score(target=_one_a_line(target), prediction=_one_a_line(prediction))
        for name in _ROUGE:
            sums[name] += found[name].fmeasure
    return {name: 100 * sums[name] / len(targets) for name in _ROUGE}


def squad(targets: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> MetricValues:
    """Exact match and F1 of tokens as SQuAD 1.1's script has them (Rajpurkar et al. 2016).

    Targets are answers, or several right ones, of which the best counts.
    """
    return _best_answers(targets, predictions, normalize_squad)


def trivia_qa(targets: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> MetricValues:
    """Exact match and F1 of tokens as TriviaQA's script has them (Joshi et al. 2017)."""
    return _best_answers(targets, predictions, normalize_trivia_qa)


def span_squad(targets: Sequence[Mapping[str, Any]], predictions: Sequence[str]) -> MetricValues:
    """`squad` of predictions such as "start: 3 end: 6": words of the context.

    Targets have `answers` and `context`. A prediction of another form is an empty answer.
    """
    found = [
        _span(target["context"], text) for target, text in zip(targets, predictions, strict=True)
    ]
    return squad([target["answers"] for target in targets], found)


def record(targets: Sequence[Mapping[str, Any]], predictions: Sequence[str]) -> MetricValues:
    """`squad` of ReCoRD: of the examples of one `group` (a passage's query) the first counts.

    Targets have `group` and `value`, the right answers.
    """
    first: dict[Any, tuple[Sequence[str], str]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        first.setdefault(target["group"], (target["value"], prediction))
    answers, texts = zip(*first.values(), strict=True)
    return squad(answers, texts)


def coqa_f1(targets: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> MetricValues:
    """Mean F1 of tokens, the best of several answers (Reddy et al. 2019); two empty ones agree."""

    def f1(answer: str, prediction: str) -> float:
        return 1.0 if not answer and not prediction else token_f1(answer, prediction)

    best = _best(targets, predictions, normalize_squad, f1)
    return {"f1": 100 * math.fsum(best) / len(best)}


def f1(targets: Sequence[int], predictions: Sequence[int]) -> MetricValues:
    """F1 of class 1. A prediction that is neither 0 nor 1 counts as the wrong one of them."""
    checked = [
        found if found in (0, 1) else 1 - target
        for target, found in zip(targets, predictions, strict=True)
    ]
    return {"f1": 100 * rank.f1(np.equal(targets, 1), np.equal(checked, 1))}


def mean_3class_f1(targets: Sequence[int], predictions: Sequence[int]) -> MetricValues:
    """Returns the mean of the F1 of classes 0, 1 and 2."""
    of_classes = [rank.f1(np.equal(targets, c), np.equal(predictions, c)) for c in range(3)]
    return {"mean_3class_f1": 100 * statistics.mean(of_classes)}


def matthews_corrcoef(targets: Sequence[int], predictions: Sequence[int]) -> MetricValues:
    """Matthews' correlation of classes."""
    sklearn = _library("matthews_corrcoef")
    found = sklearn.matthews_corrcoef(list(targets), list(predictions))
    return {"matthews_corrcoef": 100 * float(found)}


def auc(targets: Sequence[int], predictions: Sequence[float]) -> MetricValues:
    """Areas under the ROC and the precision-recall curve, of scores for class 1.

    T5's `auc` is not in percent, but that of its `rank_classification` is: so is this.
    """
    is_one, scores = np.equal(targets, 1), np.asarray(predictions, np.float64)
    return {
        "auc-roc": 100 * rank.auc_roc(is_one, scores),
        "auc-pr": 100 * rank.auc_pr(is_one, scores),
    }


def multirc_f1_over_all_answers(targets: Sequence[Any], predictions: Sequence[int]) -> MetricValues:
    """`f1` over all answers of MultiRC (Khashabi et al. 2018).

    Targets are classes, or have them as `value`.
    """
    return f1([t["value"] if isinstance(t, Mapping) else t for t in targets], predictions)


def multirc_exact_match(
    targets: Sequence[Mapping[str, Any]], predictions: Sequence[int]
) -> MetricValues:
    """Returns how many questions of MultiRC have all of their answers right.

    Targets have `group`, the question, and `value`, a class.
    """
    right: dict[Any, bool] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        group = target["group"]
        right[group] = right.get(group, True) and target["value"] == prediction
    return {"exact_match": 100 * sum(right.values()) / len(right)}


def pearson_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> MetricValues:
    """Pearson's correlation of numbers; a text that is not a number counts as -1."""
    stats = _library("pearson_corrcoef")
    return {"pearson_corrcoef": 100 * float(stats.pearsonr(*_numbers(targets, predictions))[0])}


def spearman_corrcoef(targets: Sequence[Any], predictions: Sequence[Any]) -> MetricValues:
    """Spearman's correlation of numbers; a text that is not a number counts as -1."""
    stats = _library("spearman_corrcoef")
    return {"spearman_corrcoef": 100 * float(stats.spearmanr(*_numbers(targets, predictions))[0])}


def edit_distance(targets: Sequence[str], predictions: Sequence[str]) -> MetricValues:
    """Words to insert, delete or replace, in lower case (nltk)."""
    nltk = _library("edit_distance")
    found = [
        nltk.edit_distance(_split_words(target), _split_words(prediction))
        for target, prediction in zip(targets, predictions, strict=True)
    ]
    return {
        "min_edit": float(min(found)),
        "max_edit": float(max(found)),
        "mean_edit": float(statistics.mean(found)),
        "median_edit": float(statistics.median(found)),
        "sum_edit": float(sum(found)),
    }


def normalize_squad(text: str) -> str:
    """Returns what SQuAD's script compares: lower case without punctuation and articles."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def normalize_trivia_qa(text: str) -> str:
    """Returns what TriviaQA's script compares: as SQuAD's, but punctuation becomes a space."""
    kept = "".join(" " if c in _TRIVIA_QA_PUNCTUATION else c for c in text.lower())
    return " ".join(_ARTICLES.sub(" ", kept).split())


def token_f1(target: str, prediction: str) -> float:
    """F1 of the words that two normalised texts have in common; 0 where there are none."""
    wanted, found = target.split(), prediction.split()
    num_common = (Counter(wanted) & Counter(found)).total()
    return 2 * num_common / (len(wanted) + len(found)) if num_common else 0.0


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, ("accuracy",)),
    "sequence_accuracy": Metric(sequence_accuracy, ("sequence_accuracy",)),
    "f1": Metric(f1, ("f1",), "class"),
    "mean_3class_f1": Metric(mean_3class_f1, ("mean_3class_f1",), "class"),
    "matthews_corrcoef": Metric(matthews_corrcoef, ("matthews_corrcoef",), "class"),
    "auc": Metric(auc, ("auc-roc", "auc-pr"), "class"),
    "squad": Metric(squad, ("em", "f1")),
    "span_squad": Metric(span_squad, ("em", "f1"), "example"),
    "trivia_qa": Metric(trivia_qa, ("em", "f1")),
    "record": Metric(record, ("em", "f1"), "example"),
    "coqa_f1": Metric(coqa_f1, ("f1",)),
    "multirc_f1_over_all_answers": Metric(multirc_f1_over_all_answers, ("f1",), "class"),
    "multirc_exact_match": Metric(multirc_exact_match, ("exact_match",), "example"),
    "bleu": Metric(bleu, ("bleu",)),
    "rouge": Metric(rouge, _ROUGE),
    "pearson_corrcoef": Metric(pearson_corrcoef, ("pearson_corrcoef",)),
    "spearman_corrcoef": Metric(spearman_corrcoef, ("spearman_corrcoef",)),
    "edit_distance": Metric(
        edit_distance, ("min_edit", "max_edit", "mean_edit", "median_edit", "sum_edit")
    ),
}


# Metric → what computes it, of the extra `eval`.
_LIBRARIES = {
    "bleu": "sacrebleu",
    "rouge": "rouge_score.rouge_scorer",
    "matthews_corrcoef": "sklearn.metrics",
    "pearson_corrcoef": "scipy.stats",
    "spearman_corrcoef": "scipy.stats",
    "edit_distance": "nltk.metrics.distance",
}


def require(name: str) -> None:
    """Imports the library that computes a metric, where it needs one.

    Raises:
      UserError: it is not installed; says how to install it.
    """
    if name in _LIBRARIES:
        _library(name)


def _library(metric: str) -> Any:
    return import_extra(_LIBRARIES[metric], f"metric {metric}", extra="eval")


def _percent_equal(targets: Sequence[Any], predictions: Sequence[Any]) -> float:
    same = sum(target == found for target, found in zip(targets, predictions, strict=True))
    return 100 * same / len(targets)


def _best(
    targets: Sequence[str | Sequence[str]],
    predictions: Sequence[str],
    normalize: Callable[[str], str],
    score: Callable[[str, str], float],
) -> list[float]:
    """Returns the best score of each prediction over its right answers."""
    found = []
    for target, prediction in zip(targets, predictions, strict=True):
        answers = [target] if isinstance(target, str) else target
        text = normalize(prediction)
        found.append(max(score(normalize(answer), text) for answer in answers))
    return found


def _best_answers(
    targets: Sequence[str | Sequence[str]],
    predictions: Sequence[str],
    normalize: Callable[[str], str],
) -> MetricValues:
    same = _best(targets, predictions, normalize, lambda a, b: float(a == b))
    f1s = _best(targets, predictions, normalize, token_f1)
    return {"em": 100 * math.fsum(same) / len(same), "f1": 100 * math.fsum(f1s) / len(f1s)}


def _one_a_line(summary: str) -> str:
    return summary.replace(" . ", " .\n")


def _split_words(text: str) -> list[str]:
    return re.split(r"[^\w]", text.lower())


def _span(context: str, prediction: str) -> str:
    words = re.sub(r"\W", " ", context).split()
    found = re.sub(r"\W", " ", prediction).split()
    if len(found) < 4 or not (found[1].isdecimal() and found[3].isdecimal()):
        return ""
    return " ".join(words[int(found[1]) : int(found[3]) + 1])


def _numbers(targets: Sequence[Any], predictions: Sequence[Any]) -> tuple[list[float], list[float]]:
    return [_number(t) for t in targets], [_number(p) for p in predictions]


def _number(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        return _NOT_A_NUMBER
