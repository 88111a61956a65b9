"""Registers mtf's tasks and mixtures with SeqIO, for T5X and other users of SeqIO.

    from mtf.seqio import registry
    registry.register("t0++_train")

Then `mixture_or_task_name="t0++_train"` works in T5X and in `seqio.get_mixture_or_task`. The tasks
have `metric_fns`, so SeqIO's evaluator reports the metrics of `recipes.evaluate`. SeqIO and
TensorFlow are imported only when `register` is called.
"""

from __future__ import annotations

import os

from mtf.errors import UserError
from mtf.seqio.importing import import_seqio
from mtf.tasks.prompts.templates import Templates
from mtf.text.vocabularies import Vocabulary

# Name of a registered task or mixture → its vocabulary, mirror and definition.
_REGISTERED: dict[str, dict[str, str]] = {}


def register(
    name: str,
    *,
    vocabulary: Vocabulary | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    templates: str | os.PathLike[str] | Templates | None = None,
) -> None:
    """Registers a mixture and its tasks, or one task, with SeqIO.

    In a mixture for mT5, T0's tasks are called `mt5_NAME`, so that both versions can be registered;
    a task that is registered by its own name keeps that name. Calling this twice has no effect.

    Args:
      name: name of a mixture or task in `mtf.tasks.mixtures`.
      vocabulary: vocabulary of all features; None: the mixture's, from `gs://t5-data/vocabs/`.
      data_dir: a local mirror of the datasets; None: see `mtf.sources.datasets.open_split`.
      templates: templates or their path; None: see `load_templates`.

    Raises UserError if the name is unknown, SeqIO is not installed, or a name is already registered
    by another library, or with another vocabulary, mirror or templates.
    """
    seqio = import_seqio()
    from mtf.evaluation.metric_fns import metric_fns
    from mtf.seqio import tasks as seqio_tasks

    provider, used, fingerprints = seqio_tasks.build(
        name, vocabulary, data_dir, templates, metric_fns=metric_fns
    )
    identities = {
        each: {
            "vocabulary": used,
            "data_dir": str(data_dir),
            "the hash of its definition and templates": fingerprint,
        }
        for each, fingerprint in fingerprints.items()
    }
    tasks = [task for task in seqio.get_subtasks(provider) if _is_new(task.name, identities)]
    # All names are checked before anything is registered.
    if isinstance(provider, seqio.Mixture) and _is_new(name, identities):
        seqio.MixtureRegistry.add_provider(name, provider)
        _REGISTERED[name] = identities[name]
    for task in tasks:
        seqio.TaskRegistry.add_provider(task.name, task)
        _REGISTERED[task.name] = identities[task.name]


def _is_new(name: str, identities: dict[str, dict[str, str]]) -> bool:
    seqio = import_seqio()
    if name not in seqio.TaskRegistry.names() and name not in seqio.MixtureRegistry.names():
        return True
    if name not in _REGISTERED:
        raise UserError(f"{name!r} is already registered with SeqIO by another library")
    if _REGISTERED[name] != identities[name]:
        differ = (
            f"{what} was {_REGISTERED[name][what]} and is now {now}"
            for what, now in identities[name].items()
            if _REGISTERED[name][what] != now
        )
        raise UserError(
            f"{name!r} is already registered differently in this process: {'; '.join(differ)}. "
            "To register it as it is now, start another Python process"
        )
    return False
