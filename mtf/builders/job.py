"""Whole jobs from their parts."""

from __future__ import annotations

from typing import Literal, TypeAlias

import fiddle as fdl

from mtf.builders import checkpoint as checkpoints
from mtf.builders import partitioner as partitioners
from mtf.builders import trainer as trainers
from mtf.checkpoints.config import CheckpointConfig
from mtf.data.config import HubStream, TaskMixture, TextCorpora, TextFiles
from mtf.decoding.config import Decoding
from mtf.evaluation.config import InferEval, RankFiles
from mtf.jobs.evaluate import Evaluate
from mtf.jobs.infer import Infer
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
    evaluator: fdl.Config[InferEval] | None = None,
) -> fdl.Config[Train]:
    """A training job in which every part is a config of its own, and so can be overridden."""
    config = fdl.Config(
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
    if evaluator is not None:
        config.evaluator = evaluator
    return config


def evaluate(
    *,
    checkpoint: str | None,
    data: fdl.Config[TaskMixture] | fdl.Config[RankFiles],
    batch_size: int = 32,
    dtype: Literal["float32", "bfloat16"] = "float32",
    partitioner: fdl.Config[PjitPartitioner] | None = None,
) -> fdl.Config[Evaluate]:
    """A rank evaluation in which every part is a config of its own."""
    return fdl.Config(
        Evaluate,
        checkpoint=checkpoint,
        data=data,
        batch_size=batch_size,
        dtype=dtype,
        partitioner=partitioner or partitioners.pjit(),
    )


def infer(
    *,
    checkpoint: str | None,
    files: str | tuple[str, ...] | None = None,
    mixture_or_task_name: str | None = None,
    mode: Literal["predict", "score", "predict_with_aux"] = "predict",
    decoding: fdl.Config[Decoding] | None = None,
    batch_size: int = 32,
    partitioner: fdl.Config[PjitPartitioner] | None = None,
) -> fdl.Config[Infer]:
    """Inference over files, or over a mixture or task; by T5X's beam search with one beam."""
    return fdl.Config(
        Infer,
        checkpoint=checkpoint,
        files=files,
        mixture_or_task_name=mixture_or_task_name,
        mode=mode,
        decoding=decoding or fdl.Config(Decoding, method="beam", num_beams=1),
        batch_size=batch_size,
        partitioner=partitioner or partitioners.pjit(),
    )
