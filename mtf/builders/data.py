"""Functions with which recipes and fiddlers make or examine data configs."""

from __future__ import annotations

import math

import fiddle as fdl

from mtf.base.errors import NotCheckedError, UserError
from mtf.builders import vocabulary as vocabularies
from mtf.config import build
from mtf.data.settings import (
    DatasetTaskConfig,
    HubStreamConfig,
    TaskMixtureConfig,
    TextConfig,
    TextFilesConfig,
)
from mtf.data.tasks import dates
from mtf.data.tasks.text import mc4_subsets as mc4_subsets
from mtf.data.text.vocabularies import Vocabulary

_LENGTHS = {"inputs": 512, "targets": 128}


def is_remote(data: fdl.Config) -> bool:
    """Returns whether the data come from the Hugging Face hub or another remote location.

    A mixture is local if it has a cache, reads files or a local mirror, or is generated.
    """
    kind = fdl.get_callable(data)
    if kind is TextFilesConfig:
        return "hf://" in str(data.files)
    if kind is HubStreamConfig:
        files = data.data_files
        listed = files.values() if isinstance(files, dict) else [files]
        patterns = [p for x in listed if x for p in ((x,) if isinstance(x, str) else x)]
        return not patterns or any("://" in pattern for pattern in patterns)
    if kind is not TaskMixtureConfig or data.cache_dir is not None:
        return False
    has_no_dataset = data.task is not None and data.task.dataset is None
    if has_no_dataset or data.mixture_or_task_name == dates.NAME:
        return False
    return data.loader == "cache" or data.data_dir is None


def python_text(data: fdl.Config) -> fdl.Config[TextFilesConfig]:
    """Returns a config for training on Python's documentation with the text settings of `data`."""
    fields = TextConfig.__dataclass_fields__
    shared = {name: value for name, value in data.__arguments__.items() if name in fields}
    return fdl.Config(TextFilesConfig, files=None, **shared)


def hub(
    dataset: str | tuple[str, str],
    *,
    inputs: str,
    targets: str,
    metrics: tuple[str, ...] = (),
    answer_choices: tuple[str, ...] | None = None,
    vocabulary: fdl.Config[Vocabulary] | None = None,
    task_feature_lengths: dict[str, int] | None = None,
    cache_dir: str | None = None,
) -> fdl.Config[TaskMixtureConfig]:
    """Returns the data config for a dataset on the Hugging Face hub.

    A run trains on the split `train` and evaluates the split `validation`. The name of the task is
    that of the dataset, without its owner, or `DATASET_SUBSET`.

    Args:
      dataset: name of the dataset on the hub or in the local mirror, or a tuple of the name and the
        configuration, if the dataset has several.
      inputs: name of a column, a text with columns such as `{question} {context}`, or a Jinja
        template over columns.
      targets: name of a column, or a template.
      metrics: names of the metrics in `mtf.data.tasks.metrics` that an evaluator computes.
      answer_choices: all possible targets, if the targets are classes.
      vocabulary: vocabulary of the model; None for T5's vocabulary.
      task_feature_lengths: numbers of input and target tokens in a row; None for 512 and 128.
      cache_dir: token cache that `python -m mtf.cache` wrote for this task; None to tokenize the
        dataset into memory when the run starts.
    """
    dataset, subset = (dataset, None) if isinstance(dataset, str) else dataset
    last = dataset.rpartition("/")[2]
    return fdl.Config(
        TaskMixtureConfig,
        mixture_or_task_name=f"{last}_{subset}" if subset else last,
        task=fdl.Config(
            DatasetTaskConfig,
            dataset=dataset,
            subset=subset,
            inputs=inputs,
            targets=targets,
            metrics=metrics,
            answer_choices=answer_choices,
        ),
        loader="memory" if cache_dir is None else "cache",
        cache_dir=cache_dir,
        vocabulary=vocabulary or vocabularies.t5(),
        task_feature_lengths=task_feature_lengths or dict(_LENGTHS),
    )


def files(
    files: dict[str, str],
    *,
    inputs: str,
    targets: str,
    metrics: tuple[str, ...] = (),
    answer_choices: tuple[str, ...] | None = None,
    vocabulary: fdl.Config[Vocabulary] | None = None,
    task_feature_lengths: dict[str, int] | None = None,
    cache_dir: str | None = None,
) -> fdl.Config[TaskMixtureConfig]:
    """Returns the data config for local Parquet, JSON, CSV, TSV or text files.

    A run trains on the split `train` and evaluates the split `validation` if `files` contains it.
    The name of the task is `files`.

    Args:
      files: dict mapping splits to paths or patterns. `mtf.data.sources.files` lists the formats.

    The other arguments are those of `hub`.
    """
    config = hub(
        "files",
        inputs=inputs,
        targets=targets,
        metrics=metrics,
        answer_choices=answer_choices,
        vocabulary=vocabulary,
        task_feature_lengths=task_feature_lengths,
        cache_dir=cache_dir,
    )
    config.task.dataset, config.task.files = None, files
    config.eval_split = "validation" if "validation" in files else None
    return config


def split_template(template: str) -> tuple[str, str]:
    """Splits a template at `|||` into those of inputs and targets.

    Raises UserError unless there is exactly one `|||`.
    """
    parts = template.split("|||")
    if len(parts) != 2:
        raise UserError(
            f"template {template!r} has {len(parts) - 1} separators '|||'; expected exactly one, "
            "between inputs and targets, for example 'translate: {en} ||| {ro}'."
        )
    inputs, targets = (part.strip() for part in parts)
    return inputs, targets


def num_records(data: fdl.Config[TaskMixtureConfig]) -> int:
    """Returns the number of records in the training split; downloads a dataset if necessary."""
    from mtf.data.mixtures import open_datasets  # This module imports NumPy.

    (rows,) = open_datasets(fdl.build(data)).values()
    if isinstance(rows, UserError):
        raise rows
    return len(rows)


def fitting_lengths(
    data: fdl.Config[TaskMixtureConfig], limits: dict[str, int], num_records: int = 1000
) -> dict[str, int]:
    """Returns feature lengths that fit the first records of the training split.

    Each length is 1.25 times the largest number of tokens of that feature in a record, rounded up
    to a multiple of 16, but at most the limit for the feature. If the records are not on this
    machine, the lengths in `data` are returned.
    """
    from mtf.data.mixtures import open_datasets, open_mixture  # These modules import NumPy.
    from mtf.data.text.features import encode_feature

    settings = build(data)
    longest = dict.fromkeys(limits, 0)
    opened = open_datasets(settings, download=False)
    for task, _ in open_mixture(settings).tasks:
        rows = opened.get(task.name)
        if isinstance(rows, NotCheckedError):
            return settings.task_feature_lengths
        if isinstance(rows, UserError):
            raise rows
        for example in task.examples(rows.rows(0, num_records) if rows else (), settings.split):
            for name in longest:
                tokens = encode_feature(settings.vocabulary, example[name], add_eos=True)
                longest[name] = max(longest[name], len(tokens))
    return {
        name: min(limit, math.ceil(longest[name] * 1.25 / 16) * 16) if longest[name] else limit
        for name, limit in limits.items()
    }
