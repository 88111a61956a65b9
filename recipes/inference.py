"""Evaluates a trained model or runs inference with it."""

from __future__ import annotations

from typing import Literal

import fiddle as fdl

from mtf import builders
from mtf.data import TaskMixtureConfig
from mtf.inference import DecodingConfig
from mtf.jobs import Evaluate, Infer
from mtf.partitioning import PartitionerConfig


def evaluate(
    checkpoint: str | None = None,
    mixture_or_task_name: str = "t0_eval_score_eval",
    checkpoint_steps: str | int | tuple[int, ...] | None = None,
    cache_dir: str | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    batch_size: int = 32,
) -> fdl.Config[Evaluate]:
    """Evaluates a checkpoint, or all checkpoints of a run, on a task or a mixture.

    For generated tasks, predictions are decoded as in T5X's `infer_eval` and scored with the task's
    metrics, such as BLEU or ROUGE. Ranked tasks (`*_score_eval`) are evaluated as in `t0_eval`.

    Command: `python -m mtf.run "recipes.evaluate(checkpoint='RUN',
    mixture_or_task_name='xsum_summarize_DOC')"`. To evaluate all checkpoints of a run and find the
    best one, add `--set checkpoint_steps=all`. For greedy decoding, which is faster, add
    `--set decoding=@mtf.inference.DecodingConfig(method=greedy)`.
    Hardware: any. If the model needs several devices, add `--set partitioner.num_partitions=8`.
    Expect: `results.md`, `results.json` and a file of predictions for each task; with
    `checkpoint_steps`, also `steps.tsv`, `steps.png` and the best step.

    Args:
      checkpoint: a run directory, an mtf or T5X checkpoint, or a Hugging Face directory; it must be
        set before the job runs.
      mixture_or_task_name: mixture or task; by default T0's held-out ranked tasks.
      checkpoint_steps: steps of a run to evaluate, such as "all", "1000:5000", "1000:5000:1000" or
        a tuple of steps.
      cache_dir: output of `python -m mtf.cache`; None to render and tokenize the datasets during
        the evaluation.
      vocabulary: SentencePiece model. The default is used only if the checkpoint contains no
        vocabulary and has T5's vocabulary size.
      batch_size: number of examples in a batch.
    """
    data = fdl.Config(
        TaskMixtureConfig,
        mixture_or_task_name=mixture_or_task_name,
        vocabulary=builders.vocabulary.t5(vocabulary),
        task_feature_lengths={"inputs": 1024, "targets": 256},
        cache_dir=cache_dir,
        pack=False,
    )
    return fdl.Config(
        Evaluate,
        checkpoint=checkpoint,
        data=data,
        batch_size=batch_size,
        partitioner=fdl.Config(PartitionerConfig),
        checkpoint_steps=checkpoint_steps,
    )


def infer(
    checkpoint: str | None = None,
    files: str | tuple[str, ...] | None = None,
    mixture_or_task_name: str | None = None,
    mode: Literal["predict", "score", "predict_with_aux"] = "predict",
    batch_size: int = 32,
) -> fdl.Config[Infer]:
    """Predicts or scores the targets of files, or of a mixture's tasks, with any checkpoint.

    The results have the same file names and format as those of T5X's `t5x/infer.py`, with a line of
    JSON for each example, in order. A killed job can be resumed. As in T5X's
    `EncoderDecoderModel.predict_batch`, targets are decoded by a beam search with one beam, which
    continues after EOS while a longer text could score better.

    Command: `python -m mtf.run "recipes.infer(checkpoint='RUN_DIR', files='inputs.txt')"`. Add
    `--set decoding.num_beams=4` to use more beams, or `--set decoding.method=greedy`, which is
    faster.
    Hardware: any. If the model needs several devices, add `--set partitioner.num_partitions=8`.
    Expect: `RUN_DIR/inference/inputs-predict.jsonl-00000-of-00001`.

    Args:
      checkpoint: a run directory, an mtf or T5X checkpoint, or a Hugging Face directory; it must be
        set before the job runs.
      files: `.txt`, `.jsonl`, `.csv` or `.tsv` files, which may be compressed (`.gz`).
      mixture_or_task_name: mixture or task to use instead of files, such as
        `super_glue_rte_GPT_3_style`.
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
