"""Continued pretraining of any checkpoint of the T5 family on any text.

Source of the defaults: Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 3.1.
"""

from __future__ import annotations

from typing import Any, Literal

import fiddle as fdl

from mtf import builders
from mtf.data import HubStreamConfig, SpanCorruption, TextFilesConfig
from mtf.errors import UserError
from mtf.jobs import Train
from mtf.tasks.objectives import span_corruption_lengths
from mtf.text.normalization import Normalization
from mtf.training import AdafactorConfig, TrainerConfig


def continue_pretraining(
    checkpoint: str,
    files: str | tuple[str, ...] | None = None,
    dataset: str | None = None,
    subset: str | dict[str, float] | None = None,
    validation: str | None = None,
    steps: int = 10_000,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    eval_period: int | None = None,
    inputs_length: int = 512,
    normalization: Normalization = None,
    vocabulary: str | None = None,
    config: str | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    hardware: Literal["cpu", "accelerator"] | None = None,
) -> fdl.Config[Train]:
    """Continues the pretraining of a T5, T5 1.1, mT5, umT5 or ByT5 on your text.

    The objective is T5's span corruption. The network, the vocabulary and the step are read off the
    checkpoint. The optimizer is new: Adafactor at a constant 0.001, the rate with which T5's and
    mT5's pretraining ended (1/√step at step 1,000,000), and no dropout. Short documents share rows.

    Command: `python -m mtf.run "recipes.continue_pretraining(checkpoint='google/mt5-small',
    files='ro/*.txt')"`, or, streamed, `dataset='allenai/c4', subset='ro'`.
    docs/gallery/continued_pretraining.md is an example.
    Hardware: any; as for `recipes.finetune`.
    Expect: the loss on held-out text, every tenth of the steps, and the last three checkpoints.

    The sentinels of ByT5 are bytes, and its spans have 20 bytes: for ByT5, add `--set
    data.vocabulary.extra_ids=0 data.objective.mean_noise_span_length=20`.

    Args:
      checkpoint: run directory, checkpoint of mtf or T5X, Hugging Face directory, model of the
        Hugging Face hub, or an address of one of these.
      files: `.txt` or `.jsonl` files, each a path or a pattern; up to 128 of their documents are
        held out for evaluation.
      dataset: a dataset of the Hugging Face hub, which is streamed.
      subset: its configuration, or several with their rates ({"ro": 0.9, "en": 0.1}).
      validation: split of `dataset` to evaluate, by default "validation"; a dataset without it is
        not evaluated.
      steps: number of updates, counted from the step of the checkpoint.
      batch_size: number of rows in a batch.
      learning_rate: the constant learning rate.
      eval_period: number of steps between evaluations and checkpoints; by default `steps` / 10.
      inputs_length: number of tokens of a row's inputs; that of the targets follows from it.
      normalization: "romanian_diacritics" replaces ş and ţ (cedilla) by ș and ț (comma below).
      vocabulary: "t5", "mt5", "byt5" or a SentencePiece model, if the checkpoint has none.
      config: config.json of the checkpoint's run or of Hugging Face, if it is elsewhere.
      dtype: dtype of activations instead of the one for the hardware.
      hardware: hardware of the machine that will train, "cpu" or "accelerator" (GPU or TPU), if it
        is not the machine on which the recipe is called.
    """
    if (files is None) == (dataset is None):
        raise UserError(
            "Set files to text files, or dataset to a dataset of the Hugging Face hub, not both."
        )
    if files is not None and (subset, validation) != (None, None):
        raise UserError("subset and validation belong to a dataset; files are split by themselves.")
    start = builders.start.open_start(checkpoint, vocabulary, config)
    objective = SpanCorruption()
    _, targets_length = span_corruption_lengths(
        inputs_length, objective.noise_density, objective.mean_noise_span_length
    )
    text: dict[str, Any] = {
        "vocabulary": start.vocabulary,
        "task_feature_lengths": {"inputs": inputs_length, "targets": targets_length},
        "objective": fdl.Config(SpanCorruption),
        "inputs_add_eos": start.inputs_add_eos,
        "normalization": normalization,
    }
    if dataset is not None:
        data = fdl.Config(
            HubStreamConfig,
            dataset=dataset,
            subsets={subset: 1.0} if isinstance(subset, str) else subset,
            eval_split=validation or "validation",
            **text,
        )
    else:
        data = fdl.Config(TextFilesConfig, files=files, **text)
    period = eval_period or max(steps // 10, 1)
    return fdl.Config(
        Train,
        model=builders.start.model(start, dropout_rate=0.0, dtype=dtype, hardware=hardware),
        data=data,
        optimizer=fdl.Config(
            AdafactorConfig, builders.schedule.constant(learning_rate), step_offset=start.step
        ),
        train_steps=start.step + steps,
        batch_size=batch_size,
        trainer=fdl.Config(TrainerConfig, stats_period=min(period, 100), eval_period=period),
        partitioner=builders.start.partitioner(start),
        checkpoint=builders.checkpoint.every(period, keep=3, restore=start.restore),
    )
