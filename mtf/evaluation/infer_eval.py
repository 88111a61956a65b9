"""Evaluates decoded text during training (T5X: `InferenceEvaluator`)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mtf.base.errors import UserError, did_you_mean
from mtf.data import loaders
from mtf.data.cache.format import TaskInfo
from mtf.data.cache.mixture import CachedMixture
from mtf.data.examples import Example
from mtf.data.mixtures import open_mixture
from mtf.data.settings import AnyData, TaskMixtureConfig
from mtf.data.sources.datasets import SEQIO
from mtf.data.tasks.registry import RowTask
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import Vocabulary
from mtf.evaluation import metrics
from mtf.evaluation.settings import InferEvalConfig
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.predictor import OnProgress, Predictor
from mtf.models import lora
from mtf.models.types import Params
from mtf.training.trackers import Sample

if TYPE_CHECKING:
    from mtf.data.seqio_tasks.custom import Scorer

HELD_OUT = "held_out"
_DEFAULT_METRICS = ("accuracy",)
# Stands for "no limit" where a maximum number of tokens or examples is expected.
_WHOLE = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """Defines how the predicted texts of a task are compared with its targets.

    Attributes:
      metrics: names of the metrics.
      postprocess: function that maps a text to a class index for metrics that compare classes.
      scorer: function that computes the scores of a SeqIO task; used instead of `metrics`.
    """

    metrics: tuple[str, ...] = ()
    postprocess: Callable[[str], str | int] = str.strip
    scorer: Scorer | None = None

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the scores. Averages over tasks use the first score of each task."""
        if self.scorer is not None:
            return self.scorer.names
        return tuple(metrics.score_names(self.metrics).values())


@dataclasses.dataclass(frozen=True)
class HeldOut(Compared):
    """The held-out examples of a task.

    Attributes:
      name: name of the task.
      examples: the examples, as token ids.
    """

    name: str
    examples: Sequence[Example]


@dataclasses.dataclass
class InferenceEvaluator:
    """Decodes the inputs of held-out examples and compares the results with the targets.

    Attributes:
      held_out: the held-out examples of each task.
      make_predictor: function that creates the predictor; called in the first evaluation.
      vocabulary: the vocabulary of the data.
      decoding: decoding settings.
      period: number of steps between evaluations.
      num_samples: number of examples per task whose texts are kept in `samples`.
      samples: inputs, target and prediction of each kept example of the last evaluation.
      scores: what `evaluate` returned last.
    """

    held_out: Sequence[HeldOut]
    make_predictor: Callable[[Params], Predictor]
    vocabulary: Vocabulary
    decoding: DecodingConfig
    period: int
    num_samples: int = 0
    samples: Sequence[Sample] = ()
    scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    _predictor: Predictor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(each.name for each in self.held_out)

    def evaluate(
        self, params: Params, on_progress: OnProgress = None
    ) -> dict[str, dict[str, float]]:
        """Evaluates `params`; returns a dict from task names to dicts from score names to values.

        `on_progress` is called with the number of predictions made since the last call. Raises
        UserError if the inputs of an example have no tokens.
        """
        params = lora.merged(params)
        if self._predictor is None:
            self._predictor = self.make_predictor(params)
        self._predictor.params = params
        # A single pass over all tasks lets small tasks share batches.
        inputs = (example.inputs.tolist() for each in self.held_out for example in each.examples)
        generated = self._predictor.generate(inputs, self.decoding, on_progress=on_progress)
        found: dict[str, dict[str, float]] = {}
        samples: list[Sample] = []
        for each in self.held_out:
            taken = itertools.islice(generated, len(each.examples))
            predictions = [self.vocabulary.decode(g.ids) for g, *_ in taken]
            targets = [self.vocabulary.decode(e.targets) for e in each.examples]
            found[each.name] = compare(each, targets, predictions)
            first = each.examples[: self.num_samples]
            texts = [self.vocabulary.decode(e.inputs) for e in first]
            samples += map(Sample.on_lines, texts, targets, predictions)
        self.samples, self.scores = samples, found
        return found


def compare(task: Compared, targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Compares predictions with targets; returns a dict mapping score names to values.

    Leading and trailing white space is stripped first, except for tasks with a scorer. These are
    SeqIO tasks, which strip white space themselves.
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
    """Reads the held-out examples from the data of a training run.

    Raises UserError if there are no held-out examples, if a task or metric does not exist, if a
    metric compares classes but a task has none, or if templates or a metric's library are missing.
    """
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
            "evaluator: the data has no held-out examples. Set data.num_held_out or, for "
            "a stream, data.eval_split to hold out examples; or set evaluator=None to train "
            "without decoding."
        )
    for name in names:
        if metrics.find(name).compares != "text":
            raise UserError(
                f"evaluator.metrics: {name} compares classes, but this run's data has no classes."
            )
    return [HeldOut(HELD_OUT, examples, metrics=names)]


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
        cached = {task.info.name: task for task in CachedMixture(data, data.split).tasks}
    tasks: Sequence[Task | TaskInfo] = [task.info for task in cached.values()]
    tasks = tasks or [task for task, _ in open_mixture(data).tasks]
    by_name = {task.name: task for task in tasks if task.kind == "generate"}
    for name in settings.tasks or ():
        if name not in by_name:
            raise UserError(
                f"evaluator.tasks: the data has no task {name} with generated targets."
                f"{did_you_mean(name, by_name)}"
            )
    found, limit = [], settings.num_examples or _WHOLE
    for name in settings.tasks or by_name:
        task = by_name[name]
        if isinstance(task, Task) and data.split not in task.splits:
            if settings.tasks:
                task.source_split(data.split)  # This call raises UserError.
            continue
        source = task.dataset if isinstance(task, Task) else task.source
        if source.startswith(SEQIO) and settings.metrics is None:
            scorer = find_task(data, name).scorer(data.split, lengths, limit)
            if scorer is not None:
                found.append(HeldOut(name, scorer.examples, scorer=scorer))
                continue
        if name in cached:
            examples = cached[name].read(range(min(cached[name].num_examples, limit)))
        else:
            alone = dataclasses.replace(data, mixture_or_task_name=name)
            examples = loaders.sample_examples(alone, limit)
        if examples:
            compared = comparison(task, settings.metrics, data=data)
            found.append(HeldOut(name, examples, **vars(compared)))
    if not found:
        raise UserError(
            f"evaluator: in {data.mixture_or_task_name}, no task with generated targets has "
            f"examples in the split {data.eval_split!r} (data.eval_split). To train without "
            "decoding, set evaluator=None."
        )
    return found


def comparison(
    task: Task | TaskInfo,
    asked: tuple[str, ...] | None = None,
    scorer: Scorer | None = None,
    data: TaskMixtureConfig | None = None,
) -> Compared:
    """Returns how the predictions of a task are compared with its targets.

    Args:
      task: the task, or the information about the task that a cache stores.
      asked: names of metrics to use instead of the task's metrics.
      scorer: see `Compared`.
      data: the mixture, from which the task is read if `task` comes from a cache and a metric
        compares classes or is custom.

    Raises UserError if a metric in `asked` compares classes but the task has no classes.
    """
    if asked is None and data is not None and any("." in name for name in task.metrics):
        task = find_task(data, task.name)  # A custom metric is a function, which no cache may name.
    names = asked or tuple(task.metrics)
    if any(metrics.find(metric).compares == "class" for metric in names):
        found = task if isinstance(task, Task) or data is None else find_task(data, task.name)
        if isinstance(found, Task) and found.label_classes is not None:
            return Compared(metrics=names, postprocess=found.postprocess, scorer=scorer)
        if asked is not None:
            raise UserError(
                f"evaluator.metrics ({', '.join(names)}) contains a metric that compares classes, "
                f"but {task.name} has no fixed answer choices; set evaluator.metrics=None to use "
                "each task's metrics."
            )
        if isinstance(found, RowTask):
            found.check_metrics()
        names = tuple(n for n in names if metrics.find(n).compares == "text")
    return Compared(metrics=names or _DEFAULT_METRICS, scorer=scorer)


def find_task(data: TaskMixtureConfig, name: str) -> Task:
    """Returns the task with the given name from a mixture."""
    ((task, _),) = open_mixture(dataclasses.replace(data, mixture_or_task_name=name)).tasks
    return task
