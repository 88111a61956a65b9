"""Training data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

import fiddle as fdl

from mtf.data.settings import (
    HubStreamConfig,
    TaskMixtureConfig,
    TextConfig,
    TextCorporaConfig,
    TextFilesConfig,
)
from mtf.evaluation.settings import RankFilesConfig
from mtf.tasks.objectives import BertStyle, IidDenoising, PrefixLM, SpanCorruption
from mtf.text.vocabularies import ByteVocabulary, SentencePieceVocabulary

VocabularyConfig: TypeAlias = fdl.Config[ByteVocabulary] | fdl.Config[SentencePieceVocabulary]
ObjectiveConfig: TypeAlias = (
    fdl.Config[SpanCorruption]
    | fdl.Config[IidDenoising]
    | fdl.Config[BertStyle]
    | fdl.Config[PrefixLM]
)
Normalization: TypeAlias = Literal["romanian_diacritics"] | None

_TEXT_FIELDS = {field.name for field in dataclasses.fields(TextConfig)}


def span_corruption(
    noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> fdl.Config[SpanCorruption]:
    """T5's span corruption."""
    return fdl.Config(
        SpanCorruption, noise_density=noise_density, mean_noise_span_length=mean_noise_span_length
    )


def iid_denoising(noise_density: float = 0.15) -> fdl.Config[IidDenoising]:
    """T5's i.i.d. denoising."""
    return fdl.Config(IidDenoising, noise_density=noise_density)


def bert_style(
    noise_density: float = 0.15, random_token_rate: float = 0.1
) -> fdl.Config[BertStyle]:
    """BERT's objective as T5 has it."""
    return fdl.Config(BertStyle, noise_density=noise_density, random_token_rate=random_token_rate)


def prefix_lm() -> fdl.Config[PrefixLM]:
    """Prefix language modelling, as in LM adaptation."""
    return fdl.Config(PrefixLM)


def text_files(
    vocabulary: VocabularyConfig,
    *,
    inputs_length: int,
    targets_length: int,
    files: str | tuple[str, ...] | None = None,
    objective: ObjectiveConfig | None = None,
    inputs_add_eos: bool = True,
    normalization: Normalization = None,
    pack: bool = True,
    seed: int = 0,
) -> fdl.Config[TextFilesConfig]:
    """Text files: documents through an objective (span corruption), or pairs as they are.

    `files` None is the English text that every Python carries.
    """
    return fdl.Config(
        TextFilesConfig,
        vocabulary=vocabulary,
        task_feature_lengths={"inputs": inputs_length, "targets": targets_length},
        files=files,
        objective=objective or span_corruption(),
        inputs_add_eos=inputs_add_eos,
        normalization=normalization,
        pack=pack,
        seed=seed,
    )


def text_corpora(
    vocabulary: VocabularyConfig,
    *,
    inputs_length: int,
    targets_length: int,
    files: Mapping[str, str | tuple[str, ...]],
    rates: Mapping[str, float] | None = None,
    sampling_exponent: float = 0.3,
    objective: ObjectiveConfig | None = None,
    inputs_add_eos: bool = True,
    seed: int = 0,
) -> fdl.Config[TextCorporaConfig]:
    """A corpus of files per language, sampled by size or at given rates."""
    return fdl.Config(
        TextCorporaConfig,
        vocabulary=vocabulary,
        task_feature_lengths={"inputs": inputs_length, "targets": targets_length},
        files=dict(files),
        rates=None if rates is None else dict(rates),
        sampling_exponent=sampling_exponent,
        objective=objective or span_corruption(),
        inputs_add_eos=inputs_add_eos,
        seed=seed,
    )


def hub_stream(
    vocabulary: VocabularyConfig,
    *,
    dataset: str,
    inputs_length: int,
    targets_length: int,
    subsets: Mapping[str, float] | None = None,
    eval_split: str | None = "validation",
    objective: ObjectiveConfig | None = None,
    inputs_add_eos: bool = True,
    normalization: Normalization = None,
    window_documents: int = 1024,
    seed: int = 0,
) -> fdl.Config[HubStreamConfig]:
    """Documents streamed from the Hugging Face hub."""
    return fdl.Config(
        HubStreamConfig,
        vocabulary=vocabulary,
        task_feature_lengths={"inputs": inputs_length, "targets": targets_length},
        dataset=dataset,
        subsets=None if subsets is None else dict(subsets),
        eval_split=eval_split,
        objective=objective or span_corruption(),
        inputs_add_eos=inputs_add_eos,
        normalization=normalization,
        window_documents=window_documents,
        seed=seed,
    )


def mc4_subsets() -> dict[str, float]:
    """Configurations of the hub's `allenai/c4` that are mC4, each at mT5's sampling percentage.

    The percentages are those of the mT5 paper (https://arxiv.org/abs/2010.11934, Table 6). The
    hub's `en` is C4; mC4's English is `en-multi`.
    """
    from mtf.tasks.text import mc4_languages

    return {
        "en-multi" if language.code == "en" else language.code: language.percent
        for language in mc4_languages()
    }


def task_mixture(
    name: str,
    vocabulary: VocabularyConfig,
    *,
    inputs_length: int,
    targets_length: int,
    loader: Literal["cache", "seqio"] = "cache",
    cache_dir: str | None = None,
    eval_split: str | None = "validation",
    pack: bool = True,
    seed: int = 0,
) -> fdl.Config[TaskMixtureConfig]:
    """A mixture of tasks, or one task, by its name."""
    return fdl.Config(
        TaskMixtureConfig,
        mixture_or_task_name=name,
        vocabulary=vocabulary,
        task_feature_lengths={"inputs": inputs_length, "targets": targets_length},
        loader=loader,
        cache_dir=cache_dir,
        eval_split=eval_split,
        pack=pack,
        seed=seed,
    )


def rank_files(
    files: str | tuple[str, ...],
    vocabulary: VocabularyConfig | None = None,
    *,
    inputs_length: int = 1024,
    targets_length: int = 256,
    inputs_add_eos: bool | None = None,
) -> fdl.Config[RankFilesConfig]:
    """JSON lines of one's own with inputs, answer choices and label.

    Vocabulary and end of sequence on inputs are those of the checkpoint where they are None.
    """
    return fdl.Config(
        RankFilesConfig,
        files=files,
        vocabulary=vocabulary,
        task_feature_lengths={"inputs": inputs_length, "targets": targets_length},
        inputs_add_eos=inputs_add_eos,
    )


def is_remote(data: fdl.Config) -> bool:
    """Whether the data of a job come from the Hugging Face hub, and not from local files.

    A mixture is local where there is a cache of it, or a mirror of its datasets for SeqIO.
    """
    kind = fdl.get_callable(data)
    if kind is HubStreamConfig:
        files = data.data_files
        listed = files.values() if isinstance(files, dict) else [files]
        patterns = [p for x in listed if x for p in ((x,) if isinstance(x, str) else x)]
        return not patterns or any("://" in pattern for pattern in patterns)
    mirrored = kind is TaskMixtureConfig and data.loader == "seqio" and data.data_dir is not None
    return kind is TaskMixtureConfig and data.cache_dir is None and not mirrored


def python_text(data: fdl.Config) -> fdl.Config[TextFilesConfig]:
    """The text that Python carries in the place of `data`: same lengths, vocabulary, objective."""
    shared = {n: value for n, value in data.__arguments__.items() if n in _TEXT_FIELDS}
    return fdl.Config(TextFilesConfig, files=None, **shared)
