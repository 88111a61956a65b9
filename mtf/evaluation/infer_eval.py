"""Evaluation of decoded text during training (T5X: `InferenceEvaluator`)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from mtf import loaders
from mtf.cache.format import TaskInfo
from mtf.cache.mixture import CachedMixture, NoExamplesError
from mtf.data.examples import Example
from mtf.data.settings import AnyData, TaskMixtureConfig
from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError, did_you_mean
from mtf.evaluation import metrics
from mtf.evaluation.settings import InferEvalConfig
from mtf.inference.predictor import OnProgress, Predictor
from mtf.loaders import open_mixture
from mtf.models import lora, t5
from mtf.seqio import own
from mtf.tasks.task import Task
from mtf.text.vocabularies import Vocabulary
from mtf.trackers import Sample

HELD_OUT = "held_out"
_DEFAULT_METRICS = ("accuracy",)
# Targets are not truncated for the comparison.
_WHOLE = 1 << 20


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Held-out examples of a task.

    Attributes:
      name: name of the task.
      examples: tokens of the examples.
      metrics: names of the metrics.
      postprocess: function from text to class index, for metrics that compare classes.
      scorer: computes the metrics of a task of SeqIO's, instead of `metrics`.
    """

    name: str
    examples: Sequence[Example]
    metrics: tuple[str, ...]
    postprocess: Callable[[str], str | int] = str.strip
    scorer: own.Scorer | None = None

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the scores, see `score_names`."""
        return score_names(self.metrics, self.scorer)


@dataclasses.dataclass
class InferenceEvaluator:
    """Decodes the inputs of held-out examples and compares the results with the targets.

    Attributes:
      held_out: examples of each task.
      make_predictor: called once, with the parameters of the first evaluation.
      vocabulary: the vocabulary of the data.
      decoding: decoding settings.
      period: number of steps between evaluations.
      num_samples: number of examples of each task that become samples.
      samples: samples of the last evaluation, each text on one line.
    """

    held_out: Sequence[HeldOut]
    make_predictor: Callable[[t5.Params], Predictor]
    vocabulary: Vocabulary
    decoding: DecodingConfig
    period: int
    num_samples: int = 0
    samples: Sequence[Sample] = ()
    _predictor: Predictor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(each.name for each in self.held_out)

    def evaluate(
        self, params: t5.Params, on_progress: OnProgress = None
    ) -> dict[str, dict[str, float]]:
        """Returns task → score → value; calls `on_progress` with the size of each batch."""
        params = lora.merged(params)
        if self._predictor is None:
            self._predictor = self.make_predictor(params)
        self._predictor.params = params
        # One pass over all tasks fills batches across small tasks.
        generated = self._predictor.generate(self._inputs(), self.decoding, on_progress=on_progress)
        found: dict[str, dict[str, float]] = {}
        samples: list[Sample] = []
        for each in self.held_out:
            taken = itertools.islice(generated, len(each.examples))
            predictions = [self.vocabulary.decode(g.ids) for g, *_ in taken]
            targets = [self.vocabulary.decode(e.targets) for e in each.examples]
            found[each.name] = compare(each, targets, predictions)
            first = each.examples[: self.num_samples]
            inputs = [self.vocabulary.decode(e.inputs) for e in first]
            samples += map(Sample.on_lines, inputs, targets, predictions)
        self.samples = samples
        return found

    def _inputs(self) -> Iterator[list[int]]:
        """Yields the inputs of all examples; raises UserError if one has no tokens."""
        for each in self.held_out:
            for number, example in enumerate(each.examples, 1):
                if not len(example.inputs):
                    raise UserError(
                        f"evaluator: the inputs of held-out example number {number} of {each.name} "
                        "have no tokens; expected at least one"
                    )
                yield example.inputs.tolist()


class Compared(Protocol):
    """A task whose predicted texts are compared with its targets."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""

    @property
    def postprocess(self) -> Callable[[str], str | int]:
        """The function from text to class index, for metrics that compare classes."""

    @property
    def scorer(self) -> own.Scorer | None:
        """What computes the metrics of a task of SeqIO's, instead of `metrics`."""


def compare(task: Compared, targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns score → value for the predicted texts of a task.

    Texts are stripped, except for a scorer: SeqIO leaves this to the task.
    """
    if task.scorer is not None:
        return task.scorer(predictions)
    targets, predictions = ([text.strip() for text in texts] for texts in (targets, predictions))
    classes = [[task.postprocess(text) for text in texts] for texts in (targets, predictions)]
    names, scores = metrics.score_names(task.metrics), {}
    for metric in task.metrics:
        compared = classes if metrics.find(metric).compares == "class" else (targets, predictions)
        for score, value in metrics.compute(metric, *compared).items():
            scores[names[metric, score]] = value
    return scores


def find_held_out(data: AnyData, settings: InferEvalConfig) -> list[HeldOut]:
    """Reads the held-out examples for training on `data`.

    Raises UserError if there is no held-out example, a task or metric does not exist, a metric
    needs classes and a task has none, or templates or the library of a metric are missing.
    """
    for name in settings.metrics or ():
        if metrics.find(name).compares == "example":
            raise UserError(
                f"evaluator.metrics: {name} is not supported here because it needs the whole "
                "example, not only the text of the targets."
            )
    if isinstance(data, TaskMixtureConfig):
        found = _of_tasks(data, settings)
    else:
        found = _of_texts(data, settings)
    for name in dict.fromkeys(name for each in found for name in each.metrics):
        metrics.require(name)
    return found


def _of_texts(data: AnyData, settings: InferEvalConfig) -> list[HeldOut]:
    if settings.tasks is not None:
        raise UserError(
            "evaluator.tasks can be set only if the data is a mixture (TaskMixtureConfig), but "
            "this run's data has no tasks. Set evaluator.tasks=None."
        )
    names = settings.metrics or _DEFAULT_METRICS
    examples = loaders.sample_examples(data, settings.num_examples or _WHOLE)
    if not examples:
        raise UserError(
            "evaluator: the data has no held-out examples. Hold some out (data.num_held_out, or "
            "data.eval_split of a stream), or set evaluator=None to train without decoding."
        )
    for name in names:
        if metrics.find(name).compares != "text":
            raise UserError(
                f"evaluator.metrics: {name} compares classes, but this run's data has only texts."
            )
    return [HeldOut(HELD_OUT, examples, names)]


def _of_tasks(data: TaskMixtureConfig, settings: InferEvalConfig) -> list[HeldOut]:
    if data.eval_split is None:
        raise UserError(
            "evaluator: data.eval_split is None; set it to the split to evaluate, or set "
            "evaluator=None"
        )
    lengths = {**data.task_feature_lengths, "targets": _WHOLE}
    data = dataclasses.replace(data, split=data.eval_split, task_feature_lengths=lengths)
    cached = {}
    if data.loader != "seqio":
        try:
            cached = {task.info.name: task for task in CachedMixture(data, data.split).tasks}
        except NoExamplesError as error:
            raise UserError(
                f"evaluator: {error} Set data.eval_split to a split with examples, or "
                "evaluator=None to train without decoding."
            ) from error
    tasks: Sequence[Task | TaskInfo] = [task.info for task in cached.values()]
    tasks = tasks or _tasks(data, data.mixture_or_task_name)
    own_metrics = {task.name: tuple(task.metrics) for task in tasks if task.kind == "generate"}
    for name in settings.tasks or ():
        if name not in own_metrics:
            raise UserError(
                f"evaluator.tasks: the data has no task {name} with generated targets."
                f"{did_you_mean(name, own_metrics)}"
            )
    found, limit = [], settings.num_examples or _WHOLE
    of_seqio = {t.name for t in tasks if _source(t).startswith(own.DATASET)}
    lacking = {
        task.name for task in tasks if isinstance(task, Task) and data.split not in task.splits
    }
    for name in settings.tasks or own_metrics:
        if name in lacking:
            if settings.tasks:
                find_task(data, name).source_split(data.split)
            continue
        if name in of_seqio and settings.metrics is None:
            scorer = own.scorer(find_task(data, name), data.split, lengths, limit)
            if scorer is not None:
                found.append(HeldOut(name, scorer.examples, (), scorer=scorer))
                continue
        if name in cached:
            examples = cached[name].read(np.arange(min(cached[name].num_examples, limit)))
        else:
            alone = dataclasses.replace(data, mixture_or_task_name=name)
            examples = loaders.sample_examples(alone, limit)
        if examples:
            find = functools.partial(find_task, data, name)
            compared = metrics_of_task(name, own_metrics[name], find, settings.metrics)
            found.append(HeldOut(name, examples, *compared))
    if not found:
        raise UserError(
            f"evaluator: in {data.mixture_or_task_name}, no task with generated targets has "
            f"examples in the split {data.eval_split!r} (data.eval_split). To train without "
            "decoding, set evaluator=None."
        )
    return found


def metrics_of_task(
    name: str,
    own: tuple[str, ...],
    find_task: Callable[[], Task],
    asked: tuple[str, ...] | None = None,
) -> tuple[tuple[str, ...], Callable[[str], str | int]]:
    """Returns the metrics of a task, and the function from text to class (`postprocess`).

    Args:
      name: name of the task.
      own: names of its metrics; those that need more than the text of the targets are left out.
      find_task: returns the task; called if a metric compares classes.
      asked: names of the metrics to use instead.

    Raises UserError if a metric of `asked` compares classes and the task has none.
    """
    names = asked or tuple(n for n in own if metrics.find(n).compares != "example")
    if any(metrics.find(metric).compares == "class" for metric in names):
        task = find_task()
        if task.label_classes is not None:
            return names, task.postprocess
        if asked is not None:
            raise UserError(
                f"evaluator.metrics: {', '.join(names)} compare classes, but {name} has no fixed "
                "answer choices; set evaluator.metrics=None to use each task's default metrics."
            )
        names = tuple(n for n in names if metrics.find(n).compares == "text")
    return names or _DEFAULT_METRICS, str.strip


def _source(task: Task | TaskInfo) -> str:
    return task.source if isinstance(task, TaskInfo) else task.dataset


def _tasks(data: TaskMixtureConfig, name: str) -> list[Task]:
    return [
        task for task, _ in open_mixture(dataclasses.replace(data, mixture_or_task_name=name)).tasks
    ]


def find_task(data: TaskMixtureConfig, name: str) -> Task:
    """Returns a task of a mixture by name."""
    (task,) = _tasks(data, name)
    return task


def score_names(names: Sequence[str], scorer: own.Scorer | None = None) -> tuple[str, ...]:
    """Returns the scores of a scorer, or of metrics, prefixed if two metrics have the same."""
    return scorer.names if scorer is not None else tuple(metrics.score_names(names).values())
