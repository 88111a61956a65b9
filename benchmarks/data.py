"""Compares the token cache's loader with SeqIO on the same tasks: rows a second, fill, resuming.

pip install -e '.[seqio]' && python benchmarks/data.py

With --num-workers it compares, without SeqIO, one thread with worker processes (data.num_workers),
on the token cache and on the documents that ship with Python:

python benchmarks/data.py --num-workers 2 --inputs-length 512 --vocabulary t5.spiece.model

Without further arguments the text is made up. For a real mixture name its parts; tasks whose
dataset is missing in the mirror are left out:

python benchmarks/data.py --mixture t0++_train --data-dir DIR --templates promptsource.tar.gz \\
    --vocabulary t5.spiece.model
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from mtf.cli import cache as cache_command
from mtf.data.cache import loader as cache_loader
from mtf.data.cache.format import MixtureInfo, TaskInfo, mixture_path, read_json, write_json
from mtf.data.cache.reader import TokenCache
from mtf.data.loaders import make_train_iterator
from mtf.data.mixtures import open_mixture
from mtf.data.packing import HostBatch
from mtf.data.row_streams import Shard
from mtf.data.seqio import loader as seqio_loader
from mtf.data.settings import TaskMixtureConfig, TextFilesConfig
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary

BATCH_SIZE = 64
SYNTHETIC = "opus100_en_ro_mt"
NUM_TO_RESUME = 10_000_000
_NUM_FOR_FILL = 20_000


def main() -> None:
    """Parses the command line and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixture", default=SYNTHETIC)
    parser.add_argument("--data-dir", type=Path, help="mirror of the datasets (default: made up)")
    parser.add_argument("--templates", type=Path)
    parser.add_argument("--vocabulary", type=Path, help="SentencePiece model (default: bytes)")
    parser.add_argument("--max-rows", type=int, help="of a split, in the caches")
    parser.add_argument("--inputs-length", type=int, default=1024)
    parser.add_argument("--targets-length", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-workers", type=int, help="compare them with one thread")
    parser.add_argument("--num-synthetic", type=int, default=50_000, help="rows that are made up")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(folder))


def run(args: argparse.Namespace, folder: Path) -> None:
    """Writes the caches into `folder`, measures, prints."""
    mirror = args.data_dir or write_synthetic(folder / "mirror", args.num_synthetic)
    options = ["--data-dir", str(mirror), "--skip-missing"]
    options += ["--vocabulary", str(args.vocabulary) if args.vocabulary else "byt5"]
    options += ["--templates", str(args.templates)] if args.templates else []
    options += ["--max-rows", str(args.max_rows)] if args.max_rows else []
    formats = {"tokens": [], "seqio": ["--format", "seqio", "--num-shards", "16"]}
    for name, extra in list(formats.items())[: 1 if args.num_workers else 2]:
        start = time.perf_counter()
        arguments = [args.mixture, "--output", str(folder / name), "--split", "train"]
        if cache_command.main([*arguments, *options, *extra]):
            raise SystemExit(2)
        print(f"cache {name} written in {time.perf_counter() - start:.1f} s\n")
    vocabulary = SentencePieceVocabulary(str(args.vocabulary)) if args.vocabulary else None
    data = TaskMixtureConfig(
        mixture_or_task_name=args.mixture,
        allow_missing_tasks=True,
        vocabulary=vocabulary or ByteVocabulary(),
        task_feature_lengths={"inputs": args.inputs_length, "targets": args.targets_length},
        cache_dir=str(folder / "tokens"),
        data_dir=str(mirror),
        templates=str(args.templates) if args.templates else None,
    )
    if args.num_workers:
        common = {name: getattr(data, name) for name in ("vocabulary", "task_feature_lengths")}
        compare_workers("token cache", data, args)
        compare_workers("text", TextFilesConfig(**common), args)
        return
    print(
        f"{args.mixture}, rows of {args.inputs_length}/{args.targets_length}, packed, "
        f"median of {args.repeats} × {args.seconds:g} s"
    )
    print(
        f"{'':24}{'examples/s':>11}{'lowest':>8}{'highest':>8}{'rows/s':>8}{'first s':>9}"
        f"{'inputs':>8}{'targets':>8}{'fuller':>8}"
    )
    ours = measure("token cache", cached_batches(data), args)
    live = measure("SeqIO, live", seqio_batches(data, None), args)
    read = measure("SeqIO, its own cache", seqio_batches(data, folder / "seqio"), args)
    print_fill("sequential packing", sequential_fill(data))
    print(f"\ntoken cache ÷ SeqIO live: {ours / live:.1f}; ÷ SeqIO's own cache: {ours / read:.1f}")
    large = ten_million_examples(folder / "tokens", folder / "large", args.mixture)
    placed, first = resume_seconds(dataclasses.replace(data, cache_dir=str(large)), args.repeats)
    print(
        f"resuming in the middle of a token cache of {NUM_TO_RESUME:,} examples: {placed:.2f} s, "
        f"{first:.2f} s with the first batch of {BATCH_SIZE} rows"
    )


def write_synthetic(root: Path, num_rows: int) -> Path:
    """Writes pairs of sentences of T0's lengths: some 200 tokens to some 30."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = random.Random(0)
    words = [f"{numbers.randrange(10**8):x}" for _ in range(5000)]

    def text(mean: float) -> str:
        length = 1 + int(numbers.expovariate(1 / mean))
        return " ".join(numbers.choices(words, k=min(length, int(4 * mean))))

    rows = [{"translation": {"en": text(30), "ro": text(4)}} for _ in range(num_rows)]
    path = root / "opus100" / "en-ro" / "train.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return root


def compare_workers(
    name: str, data: TextFilesConfig | TaskMixtureConfig, args: argparse.Namespace
) -> None:
    """Prints rows a second, measured in turns, and the processor time of a row."""
    sides = {
        number: make_train_iterator(
            dataclasses.replace(data, num_workers=number), batch_size=BATCH_SIZE
        )
        for number in (0, args.num_workers)
    }
    speeds: dict[int, list[float]] = {number: [] for number in sides}
    costs: dict[int, list[float]] = {number: [] for number in sides}
    for _ in range(args.repeats):
        for number, batches in sides.items():
            for _ in range(10):  # What was made ahead does not count.
                next(batches)
            start, used, num_rows = time.perf_counter(), processor_seconds(), 0
            while (seconds := time.perf_counter() - start) < args.seconds:
                next(batches)
                num_rows += BATCH_SIZE
            speeds[number].append(num_rows / seconds)
            costs[number].append((processor_seconds() - used) / num_rows)
    for number in sides:
        print(
            f"{name:12} {f'{number} workers' if number else 'one thread':10}"
            f"{statistics.median(speeds[number]):8,.0f} rows/s ({min(speeds[number]):,.0f} to "
            f"{max(speeds[number]):,.0f}), {1e3 * statistics.median(costs[number]):.3f} ms of "
            "processor time a row"
        )
    ratios = [many / one for one, many in zip(*speeds.values(), strict=True)]
    print(f"{name:12} {args.num_workers} workers ÷ one thread: {statistics.median(ratios):.2f}")


def processor_seconds() -> float:
    """Returns the processor time of this process and of its workers."""
    ticks = 0
    for process in [os.getpid(), *(each.pid for each in multiprocessing.active_children())]:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def cached_batches(data: TaskMixtureConfig) -> Iterator[HostBatch]:
    """Returns the token cache's batches."""
    return iter(cache_loader.make_train_iterator(data, Shard(BATCH_SIZE)))


def seqio_batches(
    data: TaskMixtureConfig, cache_dir: Path | None
) -> Iterator[Mapping[str, np.ndarray]]:
    """Returns SeqIO's batches of the tasks that the token cache has, at the same rates."""
    import seqio

    from mtf.data.seqio_tasks import tasks as seqio_tasks

    assert data.cache_dir is not None
    rates = (
        TokenCache(Path(data.cache_dir), data.mixture_or_task_name)
        .mixture(data.mixture_or_task_name)
        .tasks
    )
    built = seqio_tasks.build(open_mixture(data), data.vocabulary, data.data_dir)
    tasks = {task.name: task for task in seqio.get_subtasks(built.provider)}
    provider = seqio.Mixture(
        "benchmark", [(tasks[name], rate or 1) for name, rate in rates.items()]
    )
    seqio.set_global_cache_dirs([str(cache_dir)] if cache_dir else [])
    settings = {**vars(data), "use_cached": cache_dir is not None, "loader": "seqio"}
    dataset = seqio_loader.make_dataset(provider, TaskMixtureConfig(**settings))
    batches: Iterator[Mapping[str, np.ndarray]]
    batches = dataset.batch(BATCH_SIZE).prefetch(2).as_numpy_iterator()
    return batches


def measure(
    name: str, batches: Iterator[Mapping[str, np.ndarray]], args: argparse.Namespace
) -> float:
    """Prints a line for a loader; returns its median of examples a second."""
    start = time.perf_counter()
    next(batches)
    first = time.perf_counter() - start
    # What was made ahead does not count.
    for _ in range(50):
        next(batches)
    speeds, rows, tokens = [], [], []
    for _ in range(args.repeats):
        num_examples = num_batches = 0
        start = time.perf_counter()
        while (seconds := time.perf_counter() - start) < args.seconds:
            batch = next(batches)
            num_examples += int(batch["decoder_segment_ids"].max(axis=1).sum())
            num_batches += 1
            tokens.append([(batch[f"{side}_segment_ids"] > 0).mean() for side in SIDES])
        speeds.append(num_examples / seconds)
        rows.append(num_batches * BATCH_SIZE / seconds)
    median = statistics.median(speeds)
    print(
        f"{name:24}{median:11,.0f}{min(speeds):8,.0f}{max(speeds):8,.0f}"
        f"{statistics.median(rows):8,.0f}{first:9.2f}",
        end="",
    )
    print_fill(None, np.mean(tokens, axis=0))
    return median


SIDES = ("encoder", "decoder")


def print_fill(name: str | None, fill: np.ndarray) -> None:
    """Ends a line with the parts of the rows that hold tokens."""
    if name is not None:
        print(f"{name:68}", end="")
    print(f"{fill[0]:8.1%}{fill[1]:8.1%}{max(fill):8.1%}")


def sequential_fill(data: TaskMixtureConfig) -> np.ndarray:
    """Returns how full rows are where each takes the next examples as long as they fit."""
    unpacked = TaskMixtureConfig(**{**vars(data), "pack": False})
    limits = np.array([data.task_feature_lengths[name] for name in ("inputs", "targets")])
    used, total, num_rows = np.zeros(2), np.zeros(2), 1
    batches = cache_loader.make_train_iterator(unpacked, Shard(BATCH_SIZE))
    for _ in range(_NUM_FOR_FILL // BATCH_SIZE):
        batch = next(batches)
        inputs = (batch["encoder_input_tokens"] > 0).sum(axis=1)
        targets = (batch["decoder_target_tokens"] > 0).sum(axis=1)
        for lengths in np.stack([inputs, targets], axis=1):
            if (used + lengths > limits).any():
                num_rows += 1
                used = np.zeros(2)
            used += lengths
            total += lengths
    return total / num_rows / limits


def ten_million_examples(cache_dir: Path, large: Path, mixture: str) -> Path:
    """Writes a cache whose tasks have as many examples together, by repeating their files."""
    described = read_json(mixture_path(cache_dir, mixture), MixtureInfo)
    write_json(mixture_path(large, mixture), described)
    shutil.copy(cache_dir / "cache.json", large)
    tasks = [read_json(cache_dir / name / "info.json", TaskInfo) for name in described.tasks]
    num_copies = -(-NUM_TO_RESUME // sum(task.splits["train"].num_examples for task in tasks))
    for task in tasks:
        split = task.splits["train"]
        files, split.shards = split.shards, []
        (large / task.name).mkdir()
        for copy in range(num_copies):
            for shard in files:
                name = f"{copy}-{shard.file}"
                os.link(cache_dir / task.name / shard.file, large / task.name / name)
                split.shards.append(dataclasses.replace(shard, file=name))
        split.num_examples *= num_copies
        write_json(large / task.name / "info.json", task)
    return large


def resume_seconds(data: TaskMixtureConfig, repeats: int) -> tuple[float, float]:
    """Returns how long it takes to open the token cache in its middle, and until a first batch."""
    batches = cache_loader.make_train_iterator(data, Shard(BATCH_SIZE))
    state = batches.get_state()
    for row in range(BATCH_SIZE):
        unit, *rest = state[str(row)]["next"]
        state[str(row)]["next"] = [unit + NUM_TO_RESUME // 2 // BATCH_SIZE * BATCH_SIZE, *rest]
    # From there on until rows are open, as they are in any place that was saved.
    batches.set_state(state)
    for _ in range(20):
        next(batches)
    state = batches.get_state()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        resumed = cache_loader.make_train_iterator(data, Shard(BATCH_SIZE))
        resumed.set_state(state)
        placed = time.perf_counter() - start
        next(resumed)
        seconds.append((placed, time.perf_counter() - start))
    placed, first = (statistics.median(column) for column in zip(*seconds, strict=True))
    return placed, first


if __name__ == "__main__":
    main()
