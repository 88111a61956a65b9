"""`python -m mtf.data MIXTURE`: what a mixture is made of, and what it looks like."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtf.command import (
    add_source_options,
    add_vocabulary_options,
    chosen_vocabulary,
    exit_status,
    new_parser,
)
from mtf.errors import UserError
from mtf.text.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

if TYPE_CHECKING:
    from mtf.cache.mixture import CachedMixture, CachedTask
    from mtf.data.examples import Example

_EPILOG = """\
examples:
  python -m mtf.data --list
  python -m mtf.data t0++_train --cache caches/t0
  python -m mtf.data t0++_train --data-dir datasets --vocabulary t5.spiece.model -n 10
  python -m mtf.data super_glue_rte_GPT_3_style_score_eval --split validation --data-dir datasets

Without --cache, some rows of every dataset that is there are rendered and tokenised.
"""
_NUM_SAMPLED_ROWS = 200
_NUM_PACKED = 20_000


def main(argv: Sequence[str] | None = None) -> int:
    """Shows a mixture as the command line says; returns the exit status: 0, or 2 for bad input."""
    options = _parser().parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _main(options: argparse.Namespace) -> None:
    if options.list:
        from mtf.tasks.mixtures import list_mixtures

        print("\n".join(list_mixtures()))
    elif options.mixture is None:
        raise UserError("which mixture? Write python -m mtf.data MIXTURE; --list shows all")
    elif options.cache is not None:
        _show(options, options.cache, _cached_vocabulary(options))
    else:
        with tempfile.TemporaryDirectory() as folder, signals.removed_on_stop(folder):
            vocabulary = _write_sample(options, Path(folder, "cache"))
            _show(options, Path(folder, "cache"), vocabulary)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "data", "Shows a mixture, or one task: tasks, rates, tokens, packing and examples.", _EPILOG
    )
    parser.add_argument("mixture", metavar="MIXTURE", nargs="?", help="a mixture or a task")
    parser.add_argument("--list", action="store_true", help="names of all mixtures")
    parser.add_argument("--cache", metavar="DIR", type=Path, help="what mtf.cache has written")
    add_source_options(parser)
    add_vocabulary_options(parser)
    parser.add_argument("--split", default="train", help="default: %(default)s")
    parser.add_argument(
        "--lengths",
        type=_lengths,
        default=(1024, 256),
        metavar="INPUTS/TARGETS",
        help="of a row, in tokens (default: 1024/256)",
    )
    parser.add_argument("-n", type=int, default=3, metavar="N", help="examples (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: 0)")
    return parser


def _lengths(text: str) -> tuple[int, int]:
    inputs, _, targets = text.partition("/")
    try:
        return int(inputs), int(targets)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected two lengths, as in 1024/256") from None


def _write_sample(options: argparse.Namespace, cache_dir: Path) -> Vocabulary:
    """Caches some rows of each task; returns the vocabulary."""
    from mtf.cache import build
    from mtf.tasks.mixtures import mixture
    from mtf.tasks.prompts.templates import load_templates

    templates = load_templates(options.templates) if options.templates else None
    tasks = mixture(options.mixture, templates)
    vocabulary = chosen_vocabulary(options, tasks.vocabulary)
    settings = build.CacheConfig(
        cache_dir=cache_dir,
        vocabulary=vocabulary,
        splits=(options.split,),
        data_dir=options.data_dir,
        skip_missing=True,
        max_rows=_NUM_SAMPLED_ROWS,
    )
    build.run_plan(build.make_plan(tasks, settings), 1, lambda _: None)
    print(f"No --cache: the first {_NUM_SAMPLED_ROWS} rows of each task are shown.\n")
    return vocabulary


def _cached_vocabulary(options: argparse.Namespace) -> Vocabulary:
    from mtf.cache.reader import TokenCache

    if options.vocabulary is not None:
        return chosen_vocabulary(options, "t5")
    cache = TokenCache(options.cache, options.mixture)
    extra_ids = int(cache.info.vocabulary.rpartition("+")[2])
    if cache.info.vocabulary_path == "byt5":
        return ByteVocabulary(extra_ids)
    return SentencePieceVocabulary(cache.info.vocabulary_path, extra_ids)


def _show(options: argparse.Namespace, cache_dir: Path, vocabulary: Vocabulary) -> None:
    from mtf.cache.mixture import CachedMixture
    from mtf.data.settings import TaskMixtureConfig

    inputs_length, targets_length = options.lengths
    data = TaskMixtureConfig(
        mixture_or_task_name=options.mixture,
        vocabulary=vocabulary,
        task_feature_lengths={"inputs": inputs_length, "targets": targets_length},
        cache_dir=str(cache_dir),
        seed=options.seed,
    )
    dataset = CachedMixture(data, options.split)
    num_tasks = len(dataset.mixture.tasks) + len(dataset.mixture.absent)
    print(f"{options.mixture}, split {options.split}: {len(dataset.tasks)} of {num_tasks} tasks\n")
    _print_tasks(dataset, options)
    _print_absent(dataset)
    _print_packing(dataset)
    for number in range(options.n):
        _print_example(dataset, number)


def _print_tasks(dataset: CachedMixture, options: argparse.Namespace) -> None:
    total_rate = sum(task.rate for task in dataset.tasks)
    rows = [
        ["task", "rate", "%", "examples", "dropped", "inputs", "targets", "longest", "truncated"]
    ]
    splits = [task.info.splits[options.split] for task in dataset.tasks]
    all_truncated = 0
    for task, split in zip(dataset.tasks, splits, strict=True):
        means = [
            f"{split.num_tokens[name] / split.num_examples:.1f}"
            if name in split.num_tokens
            else "-"
            for name in ("inputs", "targets")
        ]
        longest = "/".join(str(split.max_tokens.get(name, "-")) for name in ("inputs", "targets"))
        truncated = _num_truncated(task, options)
        all_truncated += sum(truncated)
        rows.append(
            [
                task.info.name,
                f"{task.rate:,}",
                f"{100 * task.rate / total_rate:.2f}",
                f"{split.num_examples:,}",
                f"{split.num_dropped:,}",
                *means,
                longest,
                "/".join(map(str, truncated)) if any(truncated) else "-",
            ]
        )
    _print_table(rows)
    num_examples = sum(split.num_examples for split in splits)
    num_tokens = sum(sum(split.num_tokens.values()) for split in splits)
    print(
        f"\n{num_examples:,} examples, {num_tokens:,} tokens; "
        f"{sum(split.num_dropped for split in splits):,} of "
        f"{sum(split.num_rows for split in splits):,} rows dropped by their templates\n"
        f"truncated to {'/'.join(map(str, options.lengths))}: {all_truncated:,} inputs and targets"
    )


def _num_truncated(task: CachedTask, options: argparse.Namespace) -> list[int]:
    """Returns how many inputs and targets are longer than a row, with end of sequence."""
    info = task.info
    if info.kind == "documents":
        return [0, 0]
    split = info.splits[options.split]
    ends = (info.inputs_add_eos, info.targets_add_eos)
    return [
        split.num_longer(name, length - end)
        for name, length, end in zip(("inputs", "targets"), options.lengths, ends, strict=True)
    ]


def _print_absent(dataset: CachedMixture) -> None:
    absent = dataset.mixture.absent
    if absent:
        reasons = dict.fromkeys(absent.values())
        others = f" And {len(reasons) - 1} more reasons." if len(reasons) > 1 else ""
        print(f"absent: {len(absent)} tasks. {next(iter(reasons))}.{others}")


def _print_packing(dataset: CachedMixture) -> None:
    from mtf.cache.loader import open_streams
    from mtf.data.packing import NUM_OPEN_ROWS, Packer

    alone = dataclasses.replace(dataset.data, pack=False)
    stream = open_streams(dataset, range(1), 1, alone)[0]
    examples = [stream.next_row()[0] for _ in range(_NUM_PACKED)]
    lengths = dataset.data.task_feature_lengths
    print(f"\npacking {len(examples):,} examples of the mixture into rows of the same lengths:")
    table = [["", "rows", "examples a row", "inputs filled", "targets filled"]]
    for name, num_open in (("best fit (ours)", NUM_OPEN_ROWS), ("in sequence", 1)):
        packer = Packer(lengths, True, num_open)
        rows = [row for row in map(packer.add, examples) if row is not None]
        # Best fit is measured on the rows that it has closed: in training none is ever left open.
        table.append([name, *_fill(rows + packer.flush() * (num_open == 1), lengths)])
    _print_table(table)


def _fill(rows: Sequence[list[Example]], lengths: dict[str, int]) -> list[str]:
    num_inputs = sum(len(example.inputs) for row in rows for example in row)
    num_targets = sum(len(example.targets) for row in rows for example in row)
    return [
        f"{len(rows):,}",
        f"{sum(map(len, rows)) / len(rows):.1f}",
        f"{num_inputs / len(rows) / lengths['inputs']:.1%}",
        f"{num_targets / len(rows) / lengths['targets']:.1%}",
    ]


def _print_example(dataset: CachedMixture, number: int) -> None:
    """Prints an example of the tasks in turn, with sentinels and ends of sequence."""
    import itertools

    import numpy as np

    from mtf.data.row_streams import all_examples

    turn, index = divmod(number, len(dataset.tasks))
    task = dataset.tasks[(index * 7919) % len(dataset.tasks)]  # of other datasets, too
    if task.info.kind == "documents":
        source = task.document_source(training=True)
        found = list(itertools.islice(all_examples(source), turn, turn + 1))
    else:
        found = task.read(np.array([turn % task.num_examples]))
    for example in found:
        print(f"\n# {task.info.name}")
        for name, ids in zip(("inputs", "targets"), example, strict=True):
            print(f"{name} ({len(ids)}): {_visible(ids.tolist(), dataset.data.vocabulary)}")


def _visible(ids: list[int], vocabulary: Vocabulary) -> str:
    end = "</s>" if ids and ids[-1] == vocabulary.eos_id else ""
    return vocabulary.decode(ids) + end


def _print_table(rows: Iterable[Sequence[str]]) -> None:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [value.rjust(width) for value, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]))


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
