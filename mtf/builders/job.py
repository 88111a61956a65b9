"""Whole jobs from their parts."""

from __future__ import annotations

from typing import TypeAlias

import fiddle as fdl

from mtf.builders import checkpoint as checkpoints
from mtf.builders import partitioner as partitioners
from mtf.builders import trainer as trainers
from mtf.checkpoints.config import CheckpointConfig, RestoreCheckpointConfig
from mtf.data.config import HubStream, TaskMixture, TextCorpora, TextFiles
from mtf.jobs.evaluate import Evaluate
from mtf.jobs.train import Train
from mtf.models.config import EncoderDecoderModel
from mtf.partitioning.config import PjitPartitioner
from mtf.training.config import Adafactor, AdamW, Trainer

Data: TypeAlias = (
    fdl.Config[TextFiles]
    | fdl.Config[TextCorpora]
    | fdl.Config[HubStream]
    | fdl.Config[TaskMixture]
)


def train(
    *,
    model: fdl.Config[EncoderDecoderModel],
    data: Data,
    optimizer: fdl.Config[Adafactor] | fdl.Config[AdamW],
    train_steps: int,
    batch_size: int,
    trainer: fdl.Config[Trainer] | None = None,
    partitioner: fdl.Config[PjitPartitioner] | None = None,
    checkpoint: fdl.Config[CheckpointConfig] | None = None,
) -> fdl.Config[Train]:
    """A training job in which every part is a config of its own, and so can be overridden."""
    return fdl.Config(
        Train,
        model=model,
        data=data,
        optimizer=optimizer,
        train_steps=train_steps,
        batch_size=batch_size,
        trainer=trainer or trainers.trainer(),
        partitioner=partitioner or partitioners.pjit(),
        checkpoint=checkpoint or checkpoints.checkpoint(),
    )


def evaluate(
    *,
    model: fdl.Config[EncoderDecoderModel],
    data: fdl.Config[TaskMixture],
    checkpoint: fdl.Config[RestoreCheckpointConfig] | None,
    batch_size: int,
    partitioner: fdl.Config[PjitPartitioner] | None = None,
) -> fdl.Config[Evaluate]:
    """A rank evaluation in which every part is a config of its own."""
    return fdl.Config(
        Evaluate,
        model=model,
        data=data,
        checkpoint=checkpoint,
        batch_size=batch_size,
        partitioner=partitioner or partitioners.pjit(),
    )
