"""Continues the pretraining of any checkpoint of the T5 family on any text.

The defaults come from Raffel et al. 2020 (https://arxiv.org/abs/1910.10683, section 3.1).
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from mtf import builders
from mtf.base.errors import UserError
from mtf.data import HubStreamConfig, SpanCorruption, TextFilesConfig
from mtf.data.tasks.objectives import span_corruption_lengths
from mtf.data.text.normalization import Normalization
from mtf.jobs import Train
from mtf.training import AdafactorConfig, TrainerConfig


def continue_pretraining(
    checkpoint: str,
    files: str | tuple[str, ...] | None = None,
    dataset: str | tuple[str, str | dict[str, float]] | None = None,
    steps: int = 10_000,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    eval_period: int | None = None,
    inputs_length: int = 512,
    normalization: Normalization = None,
    vocabulary: str | None = None,
    config: str | None = None,
) -> fdl.Config[Train]:
    """Continues the pretraining of a T5, T5 1.1, mT5, umT5 or ByT5 on your text.

    The objective is T5's span corruption. The network, the vocabulary and the step are read from
    the checkpoint. There is no dropout. A new Adafactor optimizer is used with a constant learning
    rate of 0.001, the rate at which the pretraining of T5 and mT5 ended (1/√step at step
    1,000,000). Several short documents can share a row.

    Command: `python -m mtf.run "recipes.continue_pretraining(checkpoint='google/mt5-small',
    files='ro/*.txt')"`. To stream a dataset instead of files, pass `dataset=('allenai/c4', 'ro')`.
    docs/gallery/continued_pretraining.md shows an example.
    Hardware: any; the settings are the same as for `recipes.finetune`.
    Expect: the loss on held-out text after each tenth of the steps, and the last three checkpoints.

    ByT5's sentinels are bytes, and its spans have 20 bytes on average. For ByT5, add `--set
    data.vocabulary.extra_ids=0 data.objective.mean_noise_span_length=20`.

    Args:
      checkpoint: a run directory, an mtf or T5X checkpoint, a Hugging Face directory, a model on
        the Hugging Face hub, or a remote path of any of these.
      files: paths or patterns of `.txt` or `.jsonl` files; up to 128 of their documents are held
        out for evaluation.
      dataset: a dataset on the Hugging Face hub, which is streamed, or a tuple of the dataset and
        its configuration. A dict in place of the configuration maps several configurations to
        rates, as in ("allenai/c4", {"ro": 0.9, "en": 0.1}). If the dataset has no split
        "validation", nothing is evaluated.
      steps: number of updates, counted from the step of the checkpoint.
      batch_size: number of rows in a batch.
      learning_rate: the constant learning rate.
      eval_period: number of steps between evaluations and checkpoints; by default `steps` / 10.
      inputs_length: number of input tokens in a row; it determines the number of target tokens.
      normalization: "romanian_diacritics" replaces ş and ţ (cedilla) with ș and ț (comma below).
      vocabulary: "t5", "mt5", "byt5", a SentencePiece model or a tokenizer.json, if the checkpoint
        contains none.
      config: path of the config.json of a run or a Hugging Face model; None for the checkpoint's.
    """
    if (files is None) == (dataset is None):
        raise UserError(
            "Set either files to text files or dataset to a dataset on the Hugging Face hub."
        )
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
        name, subsets = (dataset, None) if isinstance(dataset, str) else dataset
        if isinstance(subsets, str):
            subsets = {subsets: 1.0}
        data = fdl.Config(HubStreamConfig, dataset=name, subsets=subsets, **text)
    else:
        data = fdl.Config(TextFilesConfig, files=files, **text)
    period = eval_period or max(steps // 10, 1)
    return fdl.Config(
        Train,
        model=builders.start.model(start, dropout_rate=0.0),
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
