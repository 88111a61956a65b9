"""Trains the Romanian T5 and mT5 with span corruption on a Romanian corpus, which is streamed.

The sources are the files `ro_*.gin`, `ro_*_pretrain.gin`, `ro_*_tasks.py` and README.md in
https://github.com/dumitrescustefan/t5x_models. There is no paper.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import fiddle as fdl

from mtf import builders
from mtf.data import HubStreamConfig, SentencePieceVocabulary, SpanCorruption, TextFilesConfig
from mtf.data.text.normalization import Normalization
from mtf.jobs import Train
from mtf.partitioning import PartitionerConfig
from mtf.training import AdafactorConfig, TrainerConfig
from recipes.family import member

# The original vocabulary is in a bucket that is not public.
_ROMANIAN_PATH = "gs://myv4-bucket/sentencepiece/ro.model"


class _Original(NamedTuple):
    """The settings that differ between the gin files; `updates` excludes the steps of `start`."""

    size: str
    targets_length: int
    updates: int
    learning_rate: float
    num_partitions: int
    period: int
    keep: int
    start: str | None = None


def _ro_t5(
    original: _Original,
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = _ROMANIAN_PATH,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Trains T5 1.1 MODEL from scratch on Romanian text, with a Romanian vocabulary.

    |                        | `ro_t5_base`           | `ro_t5_large`           |
    |------------------------|------------------------|-------------------------|
    | source                 | `ro_t5x_base.gin`      | `ro_t5x_large.gin`      |
    | target tokens in a row | 256                    | 512                     |
    | partitions             | 2                      | 4                       |
    | hardware               | TPU v4-8               | TPU v4-32               |
    | time for 1M steps      | less than a week       |                         |
    | time for 4M steps      |                        | about three weeks       |

    Source checkpoint: none.
    The original command: T5X's `train.py` with the gin file. It trains on the task
    `rlm_span_corruption_stream` for 2,000,000 steps with 512 input tokens and 256 or 512 target
    tokens in each row, a batch size of 128, no dropout, and the learning rate 1/√max(step, 10,000).
    It saves a checkpoint every 10,000 steps and keeps the last 5.
    Command: `python -m mtf.run "recipes.NAME(vocabulary='ro.model')"`, which streams
    dumitrescustefan/rlm from the Hugging Face hub. To train on your own text, run
    `python -m mtf.run "recipes.NAME(files='ro.txt', vocabulary='ro.model')"`.
    Hardware: see the table.
    Expect: no score was published. The released models were trained for up to 4M steps.

    Deviations, the same for `ro_mt5_base` and `ro_mt5_large`:
      * The seeds for shuffling and dropout are fixed, and the position in the stream is saved. The
        original drew new seeds and started the stream from the beginning at every restart.
      * Each host reads a different part of the stream; in the original, every host read all of it.
      * As in the original, whose task has no inputs feature, inputs do not end with EOS.
      * A full row of inputs yields 114 target tokens, so the rest of the target row is padding.
      * The checkpoint periods are those of the gin files. The README recommends 100,000 steps
        (`--set checkpoint.save.period=100_000`).

    Args:
      files: text files to use instead of the stream.
      vocabulary: SentencePiece model with 64,000 pieces, of which the last are the sentinels. The
        default is the path of the original, which is private.
      normalization: "romanian_diacritics" replaces ş and ţ (cedilla) with ș and ț (comma below).
        The original did not normalize the corpus.
    """
    return _pretrain(original, files, vocabulary, normalization)


ro_t5_base = member(
    _ro_t5, _Original("base", 256, 2_000_000, 1.0, 2, 10_000, 5), "ro_t5_base", "base (297M)"
)
ro_t5_large = member(
    _ro_t5, _Original("large", 512, 2_000_000, 1.0, 4, 10_000, 5), "ro_t5_large", "large (848M)"
)


def _ro_mt5(
    original: _Original,
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Trains Romanian mT5 MODEL by continuing the pretraining of mT5 on Romanian text.

    |                        | `ro_mt5_base`            | `ro_mt5_large`         |
    |------------------------|--------------------------|------------------------|
    | source                 | `ro_mt5x_base.gin`       | `ro_mt5x_large.gin`    |
    | source checkpoint      | T5X's mt5_base           | T5X's mt5_large        |
    | updates                | 1,000,000 (to 2,000,000) | 500,000 (to 1,500,000) |
    | learning rate          | 0.4/√step                | 0.5/√step              |
    | target tokens in a row | 256                      | 512                    |
    | checkpoints            | every 25,000 steps       | every 10,000 steps     |
    | hardware               | TPU v4-8                 | TPU v4-32              |

    The source checkpoints are at step 1,000,000. The last 3 checkpoints are kept. Apart from this
    and from mT5's vocabulary, the original command, the settings and the deviations are those of
    `ro_t5_base`.
    Command: `python -m mtf.run recipes.NAME`. To train on your own text, run
    `python -m mtf.run "recipes.NAME(files='ro.txt', vocabulary='mt5.model')"`.
    Hardware: see the table.
    Expect: no score was published. dumitrescustefan/mt5-base-romanian was trained to step 4M.

    Args:
      files: text files to use instead of the stream.
      vocabulary: mT5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
      normalization: "romanian_diacritics" replaces ş and ţ (cedilla) with ș and ț (comma below).
        The original did not normalize the corpus.
    """
    return _pretrain(original, files, vocabulary, normalization, checkpoint)


ro_mt5_base = member(
    _ro_mt5,
    _Original("base", 256, 1_000_000, 0.4, 2, 25_000, 3, "mt5_base"),
    "ro_mt5_base",
    "base (580M)",
)
ro_mt5_large = member(
    _ro_mt5,
    _Original("large", 512, 500_000, 0.5, 2, 10_000, 3, "mt5_large"),
    "ro_mt5_large",
    "large (1.2B)",
)


def _pretrain(
    original: _Original,
    files: str | tuple[str, ...] | None,
    vocabulary: str,
    normalization: Normalization,
    checkpoint: str | None = None,
) -> fdl.Config[Train]:
    schedule = builders.schedule.rsqrt(original.learning_rate, warmup_steps=10_000)
    start, first_step, vocab_size = None, 0, 64_000
    if original.start is not None:
        start = builders.checkpoint.start(original.start, checkpoint)
        first_step, vocab_size = start.step, builders.model.MT5_VOCAB_SIZE
        if not first_step:  # The schedule continues that of pretraining.
            schedule.step_offset = -builders.checkpoint.RELEASED_STEPS[original.start]
    text: dict[str, Any] = {
        "vocabulary": fdl.Config(SentencePieceVocabulary, vocabulary, extra_ids=0),
        "task_feature_lengths": {"inputs": 512, "targets": original.targets_length},
        "objective": fdl.Config(SpanCorruption),
        "inputs_add_eos": False,
        "normalization": normalization,
    }
    return fdl.Config(
        Train,
        model=builders.model.t5_1_1(original.size, vocab_size=vocab_size, dropout_rate=0.0),
        data=fdl.Config(HubStreamConfig, dataset="dumitrescustefan/rlm", **text)
        if files is None
        else fdl.Config(TextFilesConfig, files=files, **text),
        optimizer=fdl.Config(AdafactorConfig, schedule),
        train_steps=first_step + original.updates,
        batch_size=128,
        trainer=fdl.Config(TrainerConfig, eval_period=1000, eval_steps=20),
        partitioner=fdl.Config(PartitionerConfig, original.num_partitions),
        checkpoint=builders.checkpoint.every(original.period, keep=original.keep, restore=start),
    )
