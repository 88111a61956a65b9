"""Defines the recipes for the first runs of a new user."""

from __future__ import annotations

import fiddle as fdl

from mtf import builders
from mtf.base.errors import UserError
from mtf.data import ByteVocabulary, SpanCorruption, TaskMixtureConfig, TextFilesConfig
from mtf.evaluation import InferEvalConfig
from mtf.jobs import Train
from mtf.models import ModelConfig
from mtf.partitioning import PartitionerConfig
from mtf.training import AdafactorConfig, ScheduleConfig, TrainerConfig


def quickstart(train_steps: int = 400, batch_size: int = 64) -> fdl.Config[Train]:
    """Trains a small T5 1.1 from scratch to turn written dates into ISO 8601's, in a minute.

    The dates, from 1900 to 2099, are generated in 15 notations and five languages, such as
    "the 3rd of May, 1999" or "3 de mayo de 1999" for 1999-05-03. Every 20th day is held out from
    training in all notations; `mtf.data.tasks.dates` defines the task. Texts are encoded as bytes
    with ByT5's ids. The optimizer is T5's, Adafactor; its learning rate decays linearly.

    Command: `python -m mtf.run recipes.quickstart`. To see examples of the data, run
    `python -m mtf data dates --vocabulary byt5 -n 5`.
    Hardware: two CPU cores; the run takes less than a minute.
    Expect: of 256 dates of held-out days, at least 95% are decoded without any mistake.

    Args:
      train_steps: number of updates.
      batch_size: number of dates in a batch.
    """
    if not isinstance(train_steps, int):
        raise UserError(f"train_steps: expected int, got {train_steps!r}.")
    decay = fdl.Config(
        ScheduleConfig,
        "linear_decay",
        base_learning_rate=0.02,
        warmup_steps=50,
        decay_factor=1 / max(train_steps, 1),
        min_learning_rate=1e-3,
    )
    return fdl.Config(
        Train,
        model=_network(emb_dim=128, head_dim=32, mlp_dim=256),
        data=fdl.Config(
            TaskMixtureConfig,
            mixture_or_task_name="dates",
            loader="memory",
            vocabulary=fdl.Config(ByteVocabulary, extra_ids=125),
            task_feature_lengths={"inputs": 32, "targets": 12},
            pack=False,
        ),
        optimizer=fdl.Config(AdafactorConfig, decay),
        train_steps=train_steps,
        batch_size=batch_size,
        trainer=fdl.Config(TrainerConfig, stats_period=25, eval_period=50, eval_steps=4),
        checkpoint=builders.checkpoint.every(100, keep=3),
        partitioner=fdl.Config(PartitionerConfig),
        evaluator=fdl.Config(InferEvalConfig, period=50, num_examples=256),
        num_samples=10,
    )


def pretrain_text(
    train_steps: int = 1000, batch_size: int = 16, files: str | tuple[str, ...] | None = None
) -> fdl.Config[Train]:
    """Trains a small T5 1.1 from scratch on English text, in minutes on a laptop.

    The text consists of the documentation and the docstrings of Python's standard library. It is
    encoded as bytes with ByT5's ids and 125 sentinels. The objective is T5's span corruption
    (Raffel et al. 2020, §3.1.4), which hides 15% of the bytes in spans of three on average.

    Command: `python -m mtf.run recipes.pretrain_text`. To train on your own text, run
    `python -m mtf.run recipes.pretrain_text --set data.files=my.txt`.
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
        model=_network(emb_dim=256, head_dim=64, mlp_dim=512),
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


def _network(**sizes: int) -> fdl.Config[ModelConfig]:
    """Returns a T5 1.1 with two layers of four heads on each side, for bytes."""
    return builders.model.t5(
        vocab_size=builders.model.BYT5_VOCAB_SIZE,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.0,
        dtype="float32",
        scan_layers=False,
        **sizes,
    )
