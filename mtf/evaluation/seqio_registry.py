"""Registers mtf's tasks and mixtures with SeqIO, for T5X and other users of SeqIO.

    from mtf.evaluation import seqio_registry
    seqio_registry.register("t0++_train")

After this call, `mixture_or_task_name="t0++_train"` works in T5X and in
`seqio.get_mixture_or_task`. The tasks have `metric_fns`, so SeqIO's evaluator reports the same
metrics as `recipes.evaluate`. The evaluator passes texts to functions with a parameter
`predictions` and log-likelihoods to functions with a parameter `scores`. SeqIO and TensorFlow are
imported only when `register` is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from mtf.base.errors import UserError
from mtf.data.seqio_tasks import import_seqio
from mtf.data.tasks.mixtures import mixture
from mtf.data.tasks.prompts.templates import Templates, load_templates
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import Vocabulary
from mtf.evaluation.infer_eval import compare, comparison
from mtf.evaluation.rank import Ranked, rank_metrics

MetricFn = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
# An answer choice: (example index, choice index), is_correct, weight and number of tokens.
Choice = tuple[tuple[int, int], bool, float, int]

# Name of a registered task or mixture → text with its vocabulary, local mirror and hash.
_REGISTERED: dict[str, str] = {}


def register(
    name: str,
    *,
    vocabulary: Vocabulary | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    templates: str | os.PathLike[str] | Templates | None = None,
) -> None:
    """Registers a mixture and its tasks, or one task, with SeqIO.

    T0 tasks in a mixture for mT5 are registered as `mt5_NAME`, because `NAME` is the version for
    T5. If `name` is the name of a task, the task keeps it. Registering the same definition again
    has no effect.

    Args:
      name: name of a mixture or task in `mtf.data.tasks.mixtures`.
      vocabulary: vocabulary of all features; None for the mixture's vocabulary, which is read from
        `gs://t5-data/vocabs/`.
      data_dir: local mirror of the datasets; `mtf.data.sources.datasets.open_split` describes what
        happens if this is None.
      templates: templates or their path; `load_templates` describes what happens if this is None.

    Raises UserError if the name is unknown, if SeqIO is not installed, or if a name is already
    registered by another library or with another vocabulary, mirror or templates.
    """
    seqio = import_seqio()
    from mtf.data.seqio_tasks import tasks as seqio_tasks

    if templates is not None and not isinstance(templates, Templates):
        templates = load_templates(templates)
    found = mixture(name, templates)
    provider, used, fingerprints = seqio_tasks.build(
        found, vocabulary, data_dir, metric_fns=metric_fns
    )
    identities = {
        each: f"vocabulary {used}, data_dir {data_dir} and the definition {fingerprint}"
        for each, fingerprint in fingerprints.items()
    }
    tasks = [task for task in seqio.get_subtasks(provider) if _is_new(seqio, task.name, identities)]
    # All names are checked before anything is registered.
    if isinstance(provider, seqio.Mixture) and _is_new(seqio, name, identities):
        seqio.MixtureRegistry.add_provider(name, provider)
        _REGISTERED[name] = identities[name]
    for task in tasks:
        seqio.TaskRegistry.add_provider(task.name, task)
        _REGISTERED[task.name] = identities[task.name]


def _is_new(seqio: Any, name: str, identities: dict[str, str]) -> bool:
    if name not in seqio.TaskRegistry.names() and name not in seqio.MixtureRegistry.names():
        return True
    if name not in _REGISTERED:
        raise UserError(f"{name!r} is already registered with SeqIO by another library")
    if _REGISTERED[name] != identities[name]:
        raise UserError(
            f"{name!r} is already registered in this process with {_REGISTERED[name]}, not with "
            f"{identities[name]}. To register the new definition, start another Python process."
        )
    return False


def metric_fns(task: Task) -> list[MetricFn]:
    """Returns the metric functions of a task; a task that consists of documents has none."""
    if task.kind == "documents":
        return []
    if task.kind == "rank":
        return [rank_classification]
    compared = comparison(task)

    def generated_text(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
        return compare(compared, targets, predictions)

    return [generated_text]


def rank_classification(targets: Sequence[Choice], scores: Sequence[float]) -> dict[str, float]:
    """Computes `rank_metrics` from the log-likelihoods of all choices, given in any order."""
    examples: dict[int, list[tuple[Choice, float]]] = {}
    for target, score in zip(targets, scores, strict=True):
        examples.setdefault(int(target[0][0]), []).append((target, float(score)))
    ranked = []
    for choices in examples.values():
        choices.sort(key=lambda choice: int(choice[0][0][1]))
        found, log_likelihoods = zip(*choices, strict=True)
        num_tokens, correct = [int(each[3]) for each in found], [bool(each[1]) for each in found]
        ranked.append(Ranked(log_likelihoods, num_tokens, correct))
    return rank_metrics(ranked)
