"""Prints the contents of a mixture (`python -m mtf data`)."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from pathlib import Path

from mtf.base import signals
from mtf.base.errors import UserError, did_you_mean
from mtf.data.cache import build
from mtf.data.cache.loader import open_streams
from mtf.data.cache.mixture import CachedMixture, CachedTask
from mtf.data.cache.reader import TokenCache
from mtf.data.packing import Packer
from mtf.data.row_streams import all_examples
from mtf.data.settings import TaskMixtureConfig
from mtf.data.tasks.missing import reasons
from mtf.data.tasks.mixtures import list_mixtures, list_tasks
from mtf.data.tasks.prompts.templates import load_templates
from mtf.data.tasks.registry import import_module, registered_tasks
from mtf.data.text.vocabularies import Vocabulary, open_vocabulary
from mtf.evaluation.report import as_text
from mtf.jobs import Cache
from mtf.jobs.cache.run import chosen_vocabulary, prepare

_FEATURES = ("inputs", "targets")
_NUM_SAMPLED_ROWS = 200
_NUM_PACKED = 20_000


def run(options: argparse.Namespace, job: Cache) -> None:
    """Runs the command `python -m mtf data`; `job` has the settings of the mixture."""
    if options.list is not None:
        if job.module is not None:
            import_module(job.module, "--module")
        names = [*registered_tasks(), *list_mixtures()]
        if options.list:
            tasks = list_tasks(load_templates(job.templates))
            names = [name for name in tasks if name.startswith(options.list)]
            if not names:
                hint = did_you_mean(options.list, [*tasks, *list_mixtures()])
                raise UserError(f"--list: no task begins with {options.list}.{hint}")
        print("".join(f"{name}\n" for name in names), end="")
    elif options.mixture is None:
        raise UserError("No MIXTURE was given; to show the names of all mixtures, pass --list")
    elif options.cache is not None:
        _show(options, job, options.cache, _cached_vocabulary(job, options.cache))
    else:
        with tempfile.TemporaryDirectory() as folder, signals.removed_on_stop(folder):
            vocabulary = _write_sample(job, Path(folder, "cache"))
            _show(options, job, str(Path(folder, "cache")), vocabulary)


def _write_sample(job: Cache, cache_dir: Path) -> Vocabulary:
    """Caches the first records of each task and returns the vocabulary."""
    sample = dataclasses.replace(job, skip_missing=True, max_rows=_NUM_SAMPLED_ROWS)
    work = prepare(sample, cache_dir)
    build.run(work, 1, lambda _: None)
    print(f"Without --cache, only the first {_NUM_SAMPLED_ROWS} records of each task are read.\n")
    return work.settings.vocabulary


def _cached_vocabulary(job: Cache, cache_dir: str) -> Vocabulary:
    if job.vocabulary is not None:
        return chosen_vocabulary(job, "t5")
    cache = TokenCache(cache_dir, job.mixture)
    extra_ids = int(cache.info.vocabulary.rpartition("+")[2])
    return open_vocabulary(cache.info.vocabulary_path, extra_ids)


def _show(options: argparse.Namespace, job: Cache, cache_dir: str, vocabulary: Vocabulary) -> None:
    data = TaskMixtureConfig(
        mixture_or_task_name=options.mixture,
        vocabulary=vocabulary,
        task_feature_lengths=dict(zip(_FEATURES, options.lengths, strict=True)),
        cache_dir=cache_dir,
        module=job.module,
        seed=options.seed,
        allow_missing_tasks=True,
    )
    dataset = CachedMixture(data, options.split)
    absent, num_tasks = dataset.missing, dataset.num_tasks
    print(f"{options.mixture}, split {options.split}: {len(dataset.tasks)} of {num_tasks} tasks\n")
    _print_tasks(dataset, options)
    if absent:
        print(f"missing: {len(absent)} tasks", *reasons(absent), sep="\n  ")
    _print_packing(dataset)
    for number in range(options.n):
        _print_example(dataset, number)


def _print_tasks(dataset: CachedMixture, options: argparse.Namespace) -> None:
    total_rate = sum(task.rate for task in dataset.tasks) or 1
    table = [
        ["task", "rate", "%", "examples", "dropped", "inputs", "targets", "longest", "truncated"]
    ]
    splits = [task.info.splits[options.split] for task in dataset.tasks]
    all_truncated = 0
    for task, split in zip(dataset.tasks, splits, strict=True):
        truncated = _num_truncated(task, options)
        all_truncated += sum(truncated)
        means = {name: f"{n / split.num_examples:.1f}" for name, n in split.num_tokens.items()}
        table.append(
            [
                task.info.name,
                f"{task.rate:,}",
                f"{100 * task.rate / total_rate:.2f}",
                f"{split.num_examples:,}",
                f"{split.num_dropped:,}",
                *(means.get(name, "-") for name in _FEATURES),
                "/".join(str(split.max_tokens.get(name, "-")) for name in _FEATURES),
                "/".join(map(str, truncated)) if any(truncated) else "-",
            ]
        )
    print(as_text(table))
    print(
        f"\n{sum(split.num_examples for split in splits):,} examples, "
        f"{sum(sum(split.num_tokens.values()) for split in splits):,} tokens; "
        f"{sum(split.num_dropped for split in splits):,} of "
        f"{sum(split.num_rows for split in splits):,} records dropped by templates\n"
        f"{all_truncated:,} inputs and targets truncated to "
        f"{'/'.join(map(str, options.lengths))} tokens"
    )


def _num_truncated(task: CachedTask, options: argparse.Namespace) -> list[int]:
    """Returns the numbers of inputs and of targets that, with EOS, are longer than a row."""
    info = task.info
    if info.kind == "documents":
        return [0, 0]
    split = info.splits[options.split]
    ends = (info.inputs_add_eos, info.targets_add_eos)
    return [
        split.num_longer(name, length - end)
        for name, length, end in zip(_FEATURES, options.lengths, ends, strict=True)
    ]


def _print_packing(dataset: CachedMixture) -> None:
    alone = dataclasses.replace(dataset.data, pack=False)
    stream = open_streams(dataset, range(1), 1, alone)[0]
    lengths = dataset.data.task_feature_lengths
    packer = Packer(lengths, pack=True)
    examples = (stream.next_row()[0] for _ in range(_NUM_PACKED))
    rows = [row for row in map(packer.add, examples) if row is not None]
    fills = [
        f"{sum(len(example[i]) for row in rows for example in row) / len(rows) / lengths[name]:.1%}"
        for i, name in enumerate(_FEATURES)
    ]
    mean = sum(map(len, rows)) / len(rows)
    print(f"\npacking {_NUM_PACKED:,} examples of the mixture into rows of these lengths:")
    names = ["rows", "examples per row", "inputs filled", "targets filled"]
    print(as_text([names, [f"{len(rows):,}", f"{mean:.1f}", *fills]]))


def _print_example(dataset: CachedMixture, number: int) -> None:
    turn, index = divmod(number, len(dataset.tasks))
    # Adjacent tasks often share a dataset, so the tasks are visited in a different order.
    task = dataset.tasks[(index * 7919) % len(dataset.tasks)]
    if task.info.kind == "documents":
        documents = task.document_source(training=True)
        found = list(itertools.islice(all_examples(documents), turn, turn + 1))
    else:
        found = task.read([turn % task.num_examples])
    for example in found:
        print(f"\n# {task.info.name}")
        for name, ids in zip(_FEATURES, example, strict=True):
            vocabulary = dataset.data.vocabulary
            eos = "</s>" if len(ids) and ids[-1] == vocabulary.eos_id else ""
            print(f"{name} ({len(ids)}): {vocabulary.decode(ids.tolist())}{eos}")
