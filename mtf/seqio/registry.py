"""Adds our tasks and mixtures to SeqIO's registries, for T5X and other users of SeqIO.

    from mtf.seqio import registry
    registry.register("t0++_train")

after which `mixture_or_task_name="t0++_train"` works in T5X and in `seqio.get_mixture_or_task`.
Nothing is registered, and neither SeqIO nor TensorFlow is imported, before `register` is called.
"""

from __future__ import annotations

import os
from types import ModuleType

from mtf.errors import UserError
from mtf.extras import import_extra
from mtf.tasks.prompts.templates import Templates
from mtf.text.vocabularies import Vocabulary

# Name of each task and mixture registered here → its vocabulary, mirror and definition.
_REGISTERED: dict[str, str] = {}


def register(
    name: str,
    *,
    vocabulary: Vocabulary | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    templates: str | os.PathLike[str] | Templates | None = None,
) -> None:
    """Adds a mixture, or a task, and the tasks it is made of to SeqIO's registries.

    The names are the originals'. The tasks of a mixture with mT5's vocabulary are called
    `mt5_NAME`, so that both kinds can be registered in one program; a task that is asked for by its
    own name keeps it. Doing it again changes nothing.

    Args:
      name: a name that `mtf.tasks.mixtures.mixture` knows.
      vocabulary: None: the original's, which is read from `gs://t5-data/vocabs/`.
      data_dir: a local mirror of the datasets; None: as `mtf.sources.datasets.open_split` has it.
      templates: promptsource's, or where they are; None: as `load_templates` finds them.

    Raises:
      UserError: there is no such mixture; SeqIO is not installed; or a name is already taken, by
        another library or with another vocabulary or other templates.
    """
    seqio = import_seqio()
    from mtf.seqio import tasks as seqio_tasks

    provider, used, fingerprints = seqio_tasks.build(name, vocabulary, data_dir, templates)
    identities = {
        each: f"vocabulary {used}, mirror {data_dir}, definition {fingerprint}"
        for each, fingerprint in fingerprints.items()
    }
    tasks = [task for task in seqio.get_subtasks(provider) if _is_new(task.name, identities)]
    # Names are checked before the first one is added, so that a refusal leaves nothing behind.
    if isinstance(provider, seqio.Mixture) and _is_new(name, identities):
        seqio.MixtureRegistry.add_provider(name, provider)
        _REGISTERED[name] = identities[name]
    for task in tasks:
        seqio.TaskRegistry.add_provider(task.name, task)
        _REGISTERED[task.name] = identities[task.name]


def import_seqio() -> ModuleType:
    """Returns the module `seqio`; raises UserError if it is not installed."""
    purpose = "SeqIO's pipeline, unlike training from a token cache (data.loader='cache'),"
    return import_extra("seqio", purpose, "seqio")


def _is_new(name: str, identities: dict[str, str]) -> bool:
    seqio = import_seqio()
    if name not in seqio.TaskRegistry.names() and name not in seqio.MixtureRegistry.names():
        return True
    if name not in _REGISTERED:
        raise UserError(f"{name!r} is already in SeqIO's registries, put there by another library")
    if _REGISTERED[name] != identities[name]:
        raise UserError(
            f"{name!r} is already registered, as {_REGISTERED[name]}; it cannot be registered "
            f"again as {identities[name]} in the same program"
        )
    return False
