"""Registers the examples that mtf evaluates with SeqIO, for T5X's and SeqIO's evaluators."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # before T5X is imported
# isort: on

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from mtf.data.settings import AnyData, TaskMixtureConfig
from mtf.evaluation.infer_eval import HeldOut, compare, find_held_out
from mtf.evaluation.rank import Ranked, rank_metrics
from mtf.evaluation.rank_data import RankExample, RankTask
from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig
from mtf.evaluation.tasks import evaluation_tasks
from mtf.evaluation.text_data import TextTask
from mtf.inference.batch import Source, file_sources, task_sources
from mtf.loaders import find_mixture
from mtf.seqio import held_out
from mtf.seqio.held_out import Row, TokenizedTask
from mtf.text.features import encode_feature
from mtf.text.vocabularies import Vocabulary


def register_held_out(name: str, split: str, *, data: AnyData, evaluator: InferEvalConfig) -> str:
    """Registers the held-out examples of a training run; returns the name of the mixture.

    Predictions are compared with their targets by the metrics of the run.
    """

    def scores(task: HeldOut, predictions: Sequence[str]) -> dict[str, float]:
        targets = [data.vocabulary.decode(each.targets).strip() for each in task.examples]
        return compare(task, targets, predictions)

    tasks = [
        TokenizedTask(
            each.name,
            [Row(example.inputs, example.targets) for example in each.examples],
            predictions=functools.partial(scores, each),
        )
        for each in find_held_out(data, evaluator)
    ]
    return held_out.register(f"{name}_infer_eval", tasks, data.vocabulary, split)


def register_tasks(name: str, *, data: TaskMixtureConfig | RankFilesConfig) -> str:
    """Registers the tasks of an evaluation; returns the name of the mixture."""
    vocabulary = data.vocabulary
    assert vocabulary is not None  # that of the checkpoint
    tasks = [
        _ranked(task, data.task_feature_lengths["targets"])
        if isinstance(task, RankTask)
        else _generated(task, vocabulary)
        for task in evaluation_tasks(data)
        if task.load is not None
    ]
    split = getattr(data, "eval_split", None) or "validation"
    # SeqIO's evaluator fails for a task without examples, which has no metrics.
    tasks = [task for task in tasks if task.rows]
    return held_out.register(f"{name}_evaluation", tasks, vocabulary, split)


def _ranked(task: RankTask, length: int) -> TokenizedTask:
    """Returns a ranked task; T5X scores the first `length` tokens of each choice."""
    assert task.load is not None
    examples = [
        dataclasses.replace(each, choices=[choice[:length] for choice in each.choices])
        for each in task.load().examples
    ]
    rows = [Row(each.inputs, choice) for each in examples for choice in each.choices]
    return TokenizedTask(task.name, rows, scores=functools.partial(_rank, examples))


def _rank(examples: Sequence[RankExample], scores: Sequence[float]) -> Mapping[str, float]:
    """Returns the metrics of the log-likelihoods of all choices of all examples, in order."""
    found, left = [], iter(scores)
    for example in examples:
        log_likelihoods = [float(next(left)) for _ in example.choices]
        found.append(Ranked(log_likelihoods, [*map(len, example.choices)], example.correct))
    return rank_metrics(found)


def register_sources(
    *,
    vocabulary: Vocabulary,
    inputs_add_eos: bool | None,
    files: str | tuple[str, ...] | None,
    mixture_or_task_name: str | None,
    mode: str,
    split: str,
    data_dir: str | None,
    templates: str | None,
    module: str | None,
) -> str:
    """Registers the examples of an `Infer` job, see there; returns the name of the mixture."""
    if files is not None:
        patterns = (files,) if isinstance(files, str) else files
        sources = file_sources(patterns, mode, bool(inputs_add_eos))
    else:
        mixture = find_mixture(str(mixture_or_task_name), vocabulary, module, templates)
        sources = task_sources(mixture, split, mode, data_dir, inputs_add_eos)
    tasks = [TokenizedTask(each.name, _rows(each, vocabulary)) for each in sources]
    return held_out.register(f"{mixture_or_task_name or 'files'}_infer", tasks, vocabulary, split)


def _generated(task: TextTask, vocabulary: Vocabulary) -> TokenizedTask:
    assert task.load is not None
    rows = _rows(task.load().source, vocabulary)
    targets = [row.targets_text.strip() for row in rows]
    return TokenizedTask(task.name, rows, predictions=functools.partial(compare, task, targets))


def _rows(source: Source, vocabulary: Vocabulary) -> list[Row]:
    encode = functools.partial(encode_feature, vocabulary)
    return [
        Row(
            encode(
                each.inputs if each.input_ids is None else each.input_ids,
                add_eos=source.inputs_add_eos,
            ),
            encode(each.targets or "", add_eos=source.targets_add_eos),
            each.inputs,
            each.targets or "",
        )
        for each in source.requests()
    ]
