"""What recipes compute about data."""

from __future__ import annotations

import dataclasses

import fiddle as fdl

from mtf.data.settings import HubStreamConfig, TaskMixtureConfig, TextConfig, TextFilesConfig

_TEXT_FIELDS = {field.name for field in dataclasses.fields(TextConfig)}


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


def is_remote(data: fdl.Config) -> bool:
    """Returns whether the data of a job come from the Hugging Face hub, and not from local files.

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
    """Returns the text that Python carries, with lengths, vocabulary and objective of `data`."""
    shared = {n: value for n, value in data.__arguments__.items() if n in _TEXT_FIELDS}
    return fdl.Config(TextFilesConfig, files=None, **shared)
