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

    The results have the file names and format of T5X's `t5x/infer.py`: a line of JSON per example,
    in order. A killed job resumes. As in T5X's `EncoderDecoderModel.predict_batch`, the decoder is
    a beam search with one beam, which continues after EOS while a longer text could score better.

    Command: `python -m mtf.run "recipes.infer(checkpoint='RUN_DIR', files='inputs.txt')"`; with
    `--set decoding.num_beams=4` for more beams, or `--set decoding.method=greedy`, which is faster.
    Hardware: any. If the model exceeds one device: `--set partitioner.num_partitions=8`.
    Expect: `RUN_DIR/inference/inputs-predict.jsonl-00000-of-00001`.

    Args:
      checkpoint: run directory, checkpoint of mtf or T5X, or Hugging Face directory; it must be set
        before the job runs.
      files: `.txt`, `.jsonl` or `.tsv` files, each also as `.gz`.
      mixture_or_task_name: mixture or task instead of files, such as `super_glue_rte_GPT_3_style`.
      mode: whether to decode targets, to score given targets, or to decode targets with scores.
      batch_size: number of examples in a batch.
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
