"""Whole jobs from their parts."""

from __future__ import annotations

from typing import Literal, TypeAlias

import fiddle as fdl

from mtf.builders import checkpoint as checkpoints
from mtf.builders import partitioner as partitioners
from mtf.builders import trainer as trainers
from mtf.checkpoints.settings import CheckpointConfig
from mtf.data.settings import HubStreamConfig, TaskMixtureConfig, TextCorporaConfig, TextFilesConfig
from mtf.decoding.settings import DecodingConfig
from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig
from mtf.jobs.evaluate import Evaluate
from mtf.jobs.infer import Infer
from mtf.jobs.train import Train
from mtf.models.settings import ModelConfig
from mtf.partitioning.settings import PartitionerConfig
from mtf.training.settings import AdafactorConfig, AdamWConfig, TrainerConfig

AnyDataConfig: TypeAlias = (
    fdl.Config[TextFilesConfig]
    | fdl.Config[TextCorporaConfig]
    | fdl.Config[HubStreamConfig]
    | fdl.Config[TaskMixtureConfig]
)


def train(
    *,
    model: fdl.Config[ModelConfig],
    data: AnyDataConfig,
    optimizer: fdl.Config[AdafactorConfig] | fdl.Config[AdamWConfig],
    train_steps: int,
    batch_size: int,
    trainer: fdl.Config[TrainerConfig] | None = None,
    partitioner: fdl.Config[PartitionerConfig] | None = None,
    checkpoint: fdl.Config[CheckpointConfig] | None = None,
    evaluator: fdl.Config[InferEvalConfig] | None = None,
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
    data: fdl.Config[TaskMixtureConfig] | fdl.Config[RankFilesConfig],
    batch_size: int = 32,
    dtype: Literal["float32", "bfloat16"] = "float32",
    partitioner: fdl.Config[PartitionerConfig] | None = None,
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
    decoding: fdl.Config[DecodingConfig] | None = None,
    batch_size: int = 32,
    partitioner: fdl.Config[PartitionerConfig] | None = None,
) -> fdl.Config[Infer]:
    """Inference over files, or over a mixture or task; by T5X's beam search with one beam."""
    return fdl.Config(
        Infer,
        checkpoint=checkpoint,
        files=files,
        mixture_or_task_name=mixture_or_task_name,
        mode=mode,
        decoding=decoding or fdl.Config(DecodingConfig, method="beam", num_beams=1),
        batch_size=batch_size,
        partitioner=partitioner or partitioners.pjit(),
    )
