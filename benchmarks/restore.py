"""Measures the time to restore a run's checkpoint with and without its checksums.

The checkpoint is that of T5 1.1 base with Adafactor, 1.0 GB in float32. Restores with and without
`checksums.json` alternate in one process, and the order changes with each turn. The ratio is the
median of the ratios of the turns. With --cold, the files are removed from the page cache before
each restore.

    python benchmarks/restore.py --turns 15 [--cold]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax

from mtf.checkpoints.manager import CheckpointManager
from mtf.checkpoints.settings import SaveCheckpointConfig
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.training.settings import AdafactorConfig, ScheduleConfig
from mtf.training.trainer import Trainer

MAX_RATIO = 1.05
BASE = T5Config(
    vocab_size=32128,
    emb_dim=768,
    num_heads=12,
    head_dim=64,
    num_encoder_layers=12,
    num_decoder_layers=12,
    mlp_dim=2048,
    scan_layers=False,
)


def main() -> int:
    """Prints the medians; exit status 1 if a restore with checksums takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--cold", action="store_true", help="read from the disk")
    parser.add_argument("--folder", help="for the checkpoint (default: a temporary directory)")
    options = parser.parse_args()
    partitioner = PjitPartitioner.create(PartitionerConfig(), jax.devices()[:1])
    trainer = Trainer(ModelConfig(BASE), AdafactorConfig(ScheduleConfig()), partitioner)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        manager = CheckpointManager(folder, SaveCheckpointConfig())
        manager.save(0, trainer.init_state().state_dict(), {})
        manager.close()
        path = Path(folder) / "checkpoints" / "checkpoint_0"
        listed, hidden = path / "checksums.json", Path(folder) / "checksums.json"
        found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for turn in range(options.turns + 1):
            for with_checksums in (turn % 2 == 0, turn % 2 == 1):
                if listed.exists() != with_checksums:
                    os.rename(*((hidden, listed) if with_checksums else (listed, hidden)))
                if options.cold:
                    _drop(path)
                seconds = _restore(trainer, path)
                if turn:  # The first turn compiles.
                    found[with_checksums].append(seconds)
    ratio = 0.0
    for index, kind in ((1, "CPU"), (0, "wall")):
        checked, plain = ([each[index] for each in found[side]] for side in (True, False))
        ratio = statistics.median(a / b for a, b in zip(checked, plain, strict=True))
        medians = statistics.median(checked), statistics.median(plain)
        shown = "{:.3f} with checksums, {:.3f} without".format(*medians)
        print(f"{kind} time (s): {shown}, median of the ratios of the turns {ratio:.3f}")
    return int(ratio > MAX_RATIO)


def _restore(trainer: Trainer, path: Path) -> tuple[float, float]:
    start = time.perf_counter(), time.process_time()
    state = jax.block_until_ready(trainer.restore_state(path))
    seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    del state
    return seconds


def _drop(path: Path) -> None:
    """Removes the files from the page cache."""
    os.sync()
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    sys.exit(main())
