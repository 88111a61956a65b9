"""Returns the mixture and the vocabulary that the settings of a cache select."""

from __future__ import annotations

from mtf.base.errors import UserError
from mtf.data.mixtures import dataset_mixture, find_mixture
from mtf.data.tasks import registry
from mtf.data.tasks.mixtures import Mixture
from mtf.data.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
)
from mtf.evaluation.metrics import find as find_metric
from mtf.jobs.cache.settings import Cache

_NUM_T5_SENTINELS = 100


def chosen_vocabulary(job: Cache, original: str) -> Vocabulary:
    """Returns the vocabulary that is set, or else the released vocabulary `original`."""
    if job.vocabulary == "byt5":
        return ByteVocabulary(job.extra_ids or 0)
    path = job.vocabulary or RELEASED_MODELS.get(original)
    if path is None:
        raise UserError(
            f"--vocabulary is missing; the vocabulary {original} is not public, so pass the path "
            "of its model file"
        )
    extra_ids = _NUM_T5_SENTINELS if job.extra_ids is None else job.extra_ids
    return SentencePieceVocabulary(path, extra_ids)


def chosen_mixture(job: Cache) -> tuple[Mixture, Vocabulary]:
    """Returns the mixture, or the task that the job defines, and its vocabulary."""
    if job.task is not None:
        for metric in job.task.metrics:
            find_metric(metric)
        chosen = dataset_mixture(job.mixture, job.task, *(job.split or ()))
    else:
        if job.module is not None:
            registry.import_module(job.module, "--module")
        # SeqIO tasks are opened for one vocabulary, by default T5's. Other tasks do not depend on
        # it.
        vocabulary = chosen_vocabulary(job, "t5")
        chosen = find_mixture(job.mixture, vocabulary, job.module, job.templates)
    return chosen, chosen_vocabulary(job, chosen.vocabulary)
