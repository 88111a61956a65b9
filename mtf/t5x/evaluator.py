"""Registers mtf's evaluation examples with SeqIO, for the evaluators of T5X and SeqIO."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # must precede the import of T5X
# isort: on

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from mtf.data.mixtures import find_mixture
from mtf.data.seqio import held_out
from mtf.data.seqio.held_out import TokenizedExample, TokenizedTask
from mtf.data.settings import AnyData, TaskMixtureConfig
from mtf.data.text.features import encode_feature
from mtf.data.text.vocabularies import Vocabulary
from mtf.evaluation.infer_eval import HeldOut, compare, find_held_out
from mtf.evaluation.rank import Ranked, rank_metrics
from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig
from mtf.evaluation.task_data import RankExample
from mtf.evaluation.tasks import EvaluationTask, evaluation_tasks
from mtf.inference.batch import Source, file_sources, task_sources


def register_held_out(name: str, split: str, *, data: AnyData, evaluator: InferEvalConfig) -> str:
    """Registers the held-out examples and metrics of a training run; returns the mixture's name."""

    def scores(task: HeldOut, predictions: Sequence[str]) -> dict[str, float]:
        targets = [data.vocabulary.decode(each.targets).strip() for each in task.examples]
        return compare(task, targets, predictions)

    tasks = [
        TokenizedTask(
            each.name,
            [TokenizedExample(example.inputs, example.targets) for example in each.examples],
            predictions=functools.partial(scores, each),
        )
        for each in find_held_out(data, evaluator)
    ]
    return held_out.register(f"{name}_infer_eval", tasks, data.vocabulary, split)


def register_tasks(name: str, *, data: TaskMixtureConfig | RankFilesConfig) -> str:
    """Registers the tasks of an evaluation; returns the name of their mixture."""
    vocabulary = data.vocabulary
    assert vocabulary is not None  # set by `open_job`
    tasks = [
        _ranked(task, data.task_feature_lengths["targets"])
        if task.kind == "rank"
        else _generated(task, vocabulary)
        for task in evaluation_tasks(data)
        if task.load is not None
    ]
    split = getattr(data, "eval_split", None) or "validation"
    # Tasks without examples are left out: they have no metrics, and SeqIO's evaluator would fail.
    tasks = [task for task in tasks if task.examples]
    return held_out.register(f"{name}_evaluation", tasks, vocabulary, split)


def _ranked(task: EvaluationTask, length: int) -> TokenizedTask:
    """Returns a task that ranks choices; T5X scores the first `length` tokens of each choice."""
    assert task.load is not None
    examples = [
        dataclasses.replace(each, choices=[choice[:length] for choice in each.choices])
        for each in task.load().examples
    ]
    scored = [TokenizedExample(each.inputs, choice) for each in examples for choice in each.choices]
    return TokenizedTask(task.name, scored, scores=functools.partial(_rank, examples))


def _rank(examples: Sequence[RankExample], scores: Sequence[float]) -> Mapping[str, float]:
    """Returns the metrics; `scores` are the log-likelihoods of the examples' choices, in order."""
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
    """Registers the examples of an `Infer` job; returns the name of their mixture."""
    if files is not None:
        patterns = (files,) if isinstance(files, str) else files
        sources = file_sources(patterns, mode, bool(inputs_add_eos))
    else:
        mixture = find_mixture(str(mixture_or_task_name), vocabulary, module, templates)
        sources = task_sources(mixture, split, mode, data_dir, inputs_add_eos)
    tasks = [TokenizedTask(each.name, _tokenized(each, vocabulary)) for each in sources]
    return held_out.register(f"{mixture_or_task_name or 'files'}_infer", tasks, vocabulary, split)


def _generated(task: EvaluationTask, vocabulary: Vocabulary) -> TokenizedTask:
    assert task.load is not None
    examples = _tokenized(task.load().examples, vocabulary)
    targets = [each.targets_text.strip() for each in examples]
    return TokenizedTask(task.name, examples, predictions=functools.partial(compare, task, targets))


def _tokenized(source: Source, vocabulary: Vocabulary) -> list[TokenizedExample]:
    encode = functools.partial(encode_feature, vocabulary)
    return [
        TokenizedExample(
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
