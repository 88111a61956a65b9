"""Defines the recipe for the first run of a new user."""

from __future__ import annotations

import fiddle as fdl

from mtf import builders
from mtf.data import ByteVocabulary, SpanCorruption, TextFilesConfig
from mtf.jobs import Train
from mtf.partitioning import PartitionerConfig
from mtf.training import AdafactorConfig, TrainerConfig


def quickstart(
    train_steps: int = 1000, batch_size: int = 16, files: str | tuple[str, ...] | None = None
) -> fdl.Config[Train]:
    """Trains a small T5 1.1 from scratch on English text, in minutes on a laptop.

    The text consists of the documentation and the docstrings of Python's standard library. It is
    encoded as bytes with ByT5's ids and 125 sentinels. The objective is T5's span corruption
    (Raffel et al. 2020, §3.1.4), which hides 15% of the bytes in spans of three on average.

    Command: `python -m mtf.run recipes.quickstart`. To train on your own text, run
    `python -m mtf.run recipes.quickstart --set data.files=my.txt`.
    Hardware: two CPU cores; the run takes less than three minutes.
    Expect: a loss of 3 nats per target byte after 100 steps and about 2.15 at the end, both in
    training and on held-out text. The model learns the form of the task and which letters are
    common, but no English.

    Args:
      train_steps: number of updates.
      batch_size: number of packed rows of 64 bytes in a batch.
      files: `.txt`, `.jsonl` or `.tsv` files that contain your own text; they may be compressed
        (`.gz`).
    """
    return fdl.Config(
        Train,
        model=builders.model.t5(
            vocab_size=builders.model.BYT5_VOCAB_SIZE,
            emb_dim=256,
            num_heads=4,
            num_encoder_layers=2,
            num_decoder_layers=2,
            mlp_dim=512,
            dropout_rate=0.0,
            dtype="float32",
            scan_layers=False,
        ),
        data=fdl.Config(
            TextFilesConfig,
            files=files,
            vocabulary=fdl.Config(ByteVocabulary, extra_ids=125),
            task_feature_lengths={"inputs": 64, "targets": 14},
            objective=fdl.Config(SpanCorruption),
        ),
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.rsqrt(0.35, warmup_steps=300)),
        train_steps=train_steps,
        batch_size=batch_size,
        trainer=fdl.Config(TrainerConfig, stats_period=50, eval_period=250, eval_steps=20),
        checkpoint=builders.checkpoint.every(250, keep=3),
        partitioner=fdl.Config(PartitionerConfig),
    )
