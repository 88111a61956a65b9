"""Writes a token cache before training, and converts a checkpoint after it."""

from __future__ import annotations

import fiddle as fdl

from mtf.jobs import Cache, Convert


def cache(
    mixture: str, output: str | None = None, vocabulary: str | None = None
) -> fdl.Config[Cache]:
    """Renders and tokenizes a mixture or task once, for training and evaluation from a token cache.

    Command: `python -m mtf.run "recipes.cache(mixture='t0++_train')"`, which is the same as
    `python -m mtf.cache t0++_train`. To use a dataset as a task, add
    `--set "task=@mtf.data.DatasetTaskConfig(files={'train': 'a.jsonl'}, inputs=q, targets=a)"`.
    Hardware: CPU cores, one process for each.
    Expect: a directory for `data.cache_dir`, also on `gs://` and `s3://`.

    Args:
      mixture: mixture or task.
      output: directory of the cache; None for the one from which recipes read the mixture.
      vocabulary: SentencePiece model, or "byt5"; None for the released model of the mixture.
    """
    return fdl.Config(Cache, mixture=mixture, output=output, vocabulary=vocabulary)


def convert(
    checkpoint: str, output: str, to: str = "hf", step: int | None = None
) -> fdl.Config[Convert]:
    """Converts a checkpoint to Hugging Face, T5X, mtf or PEFT, and verifies the result.

    Command: `python -m mtf.run "recipes.convert(checkpoint='RUN', output='OUT', to='hf')"`, which
    is the same as `python -m mtf.convert RUN OUT --to hf`.
    Hardware: a CPU; a few tensors are in memory at a time.
    Expect: a directory that `transformers`, T5X, mtf or PEFT loads.

    Args:
      checkpoint: run directory, or a checkpoint of any format.
      output: new or empty directory.
      to: output format: hf, t5x, t5x_orbax, mtf or peft.
      step: step of the checkpoint; None for the latest.
    """
    return fdl.Config(Convert, checkpoint=checkpoint, output=output, to=to, step=step)
