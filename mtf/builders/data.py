"""Functions on data configs, for recipes and fiddlers."""

from __future__ import annotations

import fiddle as fdl

from mtf.data.settings import HubStreamConfig, TaskMixtureConfig, TextConfig, TextFilesConfig
from mtf.tasks.text import mc4_subsets as mc4_subsets


def is_remote(data: fdl.Config) -> bool:
    """Returns whether data come from the Hugging Face hub.

    A mixture is local if it has a cache, or uses SeqIO with a mirror of its datasets.
    """
    kind = fdl.get_callable(data)
    if kind is HubStreamConfig:
        files = data.data_files
        listed = files.values() if isinstance(files, dict) else [files]
        patterns = [p for x in listed if x for p in ((x,) if isinstance(x, str) else x)]
        return not patterns or any("://" in pattern for pattern in patterns)
    if kind is not TaskMixtureConfig or data.cache_dir is not None:
        return False
    return data.loader != "seqio" or data.data_dir is None


def python_text(data: fdl.Config) -> fdl.Config[TextFilesConfig]:
    """Returns the text of Python's documentation, with the text settings of `data`."""
    fields = TextConfig.__dataclass_fields__
    shared = {name: value for name, value in data.__arguments__.items() if name in fields}
    return fdl.Config(TextFilesConfig, files=None, **shared)
