"""Returns the mixture and the vocabulary that the options of `mtf cache` or `mtf data` select."""

from __future__ import annotations

import argparse

from mtf.base.errors import UserError
from mtf.data.mixtures import dataset_mixture, find_mixture
from mtf.data.settings import DatasetTaskConfig
from mtf.data.tasks import registry
from mtf.data.tasks.mixtures import Mixture
from mtf.data.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
)
from mtf.evaluation.metrics import find as find_metric

_NUM_T5_SENTINELS = 100


def chosen_vocabulary(options: argparse.Namespace, original: str) -> Vocabulary:
    """Returns the vocabulary given by --vocabulary, or the released vocabulary `original`."""
    if options.vocabulary == "byt5":
        return ByteVocabulary(options.extra_ids or 0)
    path = options.vocabulary or RELEASED_MODELS.get(original)
    if path is None:
        raise UserError(
            f"--vocabulary is missing; the vocabulary {original} is not public, so pass the path "
            "of its model file"
        )
    extra_ids = _NUM_T5_SENTINELS if options.extra_ids is None else options.extra_ids
    return SentencePieceVocabulary(path, extra_ids)


def chosen_mixture(options: argparse.Namespace) -> tuple[Mixture, Vocabulary]:
    """Returns the mixture that the options select, and its vocabulary."""
    if options.dataset is not None or options.files is not None:
        chosen = _dataset_mixture(options)
        return chosen, chosen_vocabulary(options, chosen.vocabulary)
    import_chosen_module(options)
    # SeqIO tasks are opened for one vocabulary, by default T5's. Other tasks do not depend on it.
    vocabulary = chosen_vocabulary(options, "t5")
    chosen = find_mixture(options.mixture, vocabulary, options.module, options.templates)
    return chosen, chosen_vocabulary(options, chosen.vocabulary)


def import_chosen_module(options: argparse.Namespace) -> None:
    """Imports the module given by --module, if any."""
    if options.module is not None:
        registry.import_module(options.module, "--module")


def _dataset_mixture(options: argparse.Namespace) -> Mixture:
    files = None
    if options.files is not None:
        files = dict(text.partition("=")[::2] for text in options.files)
        wrong = [text for text in options.files if not all(text.partition("=")[::2])]
        if wrong:
            raise UserError(f"--files {wrong[0]}: expected SPLIT=PATH, such as train=a.jsonl")
    for metric in options.metrics:
        find_metric(metric)
    for name in ("inputs", "targets"):
        if not getattr(options, name):
            raise UserError(f"--{name} is missing; expected a column of the dataset or a template")
    settings = DatasetTaskConfig(
        inputs=options.inputs,
        targets=options.targets,
        dataset=options.dataset,
        subset=options.subset,
        files=files,
        metrics=tuple(options.metrics),
        answer_choices=None if options.answer_choices is None else tuple(options.answer_choices),
    )
    splits = [options.split] if isinstance(options.split, str) else options.split or ()
    return dataset_mixture(options.mixture, settings, *splits)
