"""Inference with a trained model."""

from __future__ import annotations

from typing import Literal

import fiddle as fdl

from mtf.decoding import DecodingConfig
from mtf.jobs import Infer
from mtf.partitioning import PartitionerConfig


def infer(
    checkpoint: str | None = None,
    files: str | tuple[str, ...] | None = None,
    mixture_or_task_name: str | None = None,
    mode: Literal["predict", "score", "predict_with_aux"] = "predict",
    batch_size: int = 32,
) -> fdl.Config[Infer]:
    """Predicts or scores the targets of files, or of a mixture's tasks, with any checkpoint.

    The results have T5X's file names and format (T5X: `t5x/infer.py`): a line of JSON per example,
    in order. A job that was killed continues where it was. Targets are decoded as by T5X's
    `EncoderDecoderModel.predict_batch`: by beam search with one beam, which goes on after the first
    end of sequence as long as a longer text could score better.

    Command: `python -m mtf.run "recipes.infer(checkpoint='RUN_DIR', files='inputs.txt')"`; more
    beams with `--set decoding.num_beams=4`, greedy decoding, which is faster, with
    `--set decoding.method=greedy`.
    Hardware: any. If one device does not hold the model: `--set partitioner.num_partitions=8`.
    Expect: `RUN_DIR/inference/inputs-predict.jsonl-00000-of-00001`.

    Args:
      checkpoint: a run directory, a checkpoint of mtf or T5X, or a Hugging Face directory; it must
        be set before the job runs.
      files: `.txt`, `.jsonl` or `.tsv`, also with `.gz`; or
      mixture_or_task_name: such as `super_glue_rte_GPT_3_style`.
      mode: decode targets, score the given ones, or decode and also give the scores.
      batch_size: examples at a time.
    """
    return fdl.Config(
        Infer,
        checkpoint=checkpoint,
        files=files,
        mixture_or_task_name=mixture_or_task_name,
        mode=mode,
        decoding=fdl.Config(DecodingConfig, method="beam", num_beams=1),
        batch_size=batch_size,
        partitioner=fdl.Config(PartitionerConfig),
    )
