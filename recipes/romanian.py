"""The Romanian T5 and mT5: span corruption on a Romanian corpus, streamed.

Source: https://github.com/dumitrescustefan/t5x_models, `ro_*.gin`, `ro_*_pretrain.gin`,
`ro_*_tasks.py` and README.md. There is no paper.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import fiddle as fdl

from mtf import builders
from mtf.data import HubStreamConfig, SentencePieceVocabulary, SpanCorruption, TextFilesConfig
from mtf.jobs import Train
from mtf.partitioning import PartitionerConfig
from mtf.text.normalization import Normalization
from mtf.training import AdafactorConfig, TrainerConfig

# The original's own model, in a bucket that is not public.
_ROMANIAN_PATH = "gs://myv4-bucket/sentencepiece/ro.model"


class _Original(NamedTuple):
    """What differs between the original gin files; `updates` count from the checkpoint `start`."""

    size: str
    targets_length: int
    updates: int
    learning_rate: float
    num_partitions: int
    period: int
    keep: int
    start: str | None = None


# Size, targets' length, updates, learning rate, partitions, period and number of checkpoints.
_T5_BASE = _Original("base", 256, 2_000_000, 1.0, 2, 10_000, 5)
_T5_LARGE = _Original("large", 512, 2_000_000, 1.0, 4, 10_000, 5)
_MT5_BASE = _Original("base", 256, 1_000_000, 0.4, 2, 25_000, 3, "mt5_base")
_MT5_LARGE = _Original("large", 512, 500_000, 0.5, 2, 10_000, 3, "mt5_large")


def ro_t5_base(
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = _ROMANIAN_PATH,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Romanian T5 1.1 base (297M): span corruption from scratch, with a Romanian vocabulary.

    Source: `ro_t5x_base.gin`. Source checkpoint: none.
    The original command: T5X's `train.py` on that file: task `rlm_span_corruption_stream`, inputs
    of 512 and targets of 256, batches of 128, 2,000,000 steps, no dropout, 1/√max(step, 10,000),
    2 partitions, checkpoints every 10,000 steps of which 5 are kept.
    Command: `python -m mtf.run "recipes.ro_t5_base(vocabulary='ro.model')"`, which streams
    dumitrescustefan/rlm from the Hugging Face hub; on your own text
    `python -m mtf.run "recipes.ro_t5_base(files='ro.txt', vocabulary='ro.model')"`.
    Hardware: TPU v4-8; a million steps in less than a week.
    Expect: no score was published. dumitrescustefan's models on the hub went on to 4M steps.

    Deviations, the same for all four:
      * The seeds of order and dropout are fixed and the place in the stream is saved. The original
        drew new seeds at every start, so each restart replayed the stream from its beginning.
      * Every host reads its own part of the stream; the original's hosts all read all of it.
      * Inputs have no end of sequence, as in the original, whose task has no feature for them.
      * Targets are 114 tokens at these inputs; the longer rows hold several examples, packed.

    Args:
      files: text files instead of the stream.
      vocabulary: a SentencePiece model of 64,000 pieces whose last ones are the sentinels. The
        default is the original's address, which is private.
      normalization: "romanian_diacritics" writes ş and ţ (cedilla) as ș and ț (comma below). The
        original took the corpus as it was.
    """
    return _pretrain(_T5_BASE, files, vocabulary, normalization)


def ro_t5_large(
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = _ROMANIAN_PATH,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Romanian T5 1.1 large (848M): span corruption from scratch, with a Romanian vocabulary.

    Source: `ro_t5x_large.gin`. All else: as `ro_t5_base`, with targets of 512 and 4 partitions.
    Command: `python -m mtf.run "recipes.ro_t5_large(vocabulary='ro.model')"`.
    Hardware: TPU v4-32; 4 million steps in about three weeks.
    Expect: no score was published.
    """
    return _pretrain(_T5_LARGE, files, vocabulary, normalization)


def ro_mt5_base(
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Romanian mT5 base (580M): mT5's pretraining goes on in Romanian.

    Source: `ro_mt5x_base.gin`. Source checkpoint: T5X's mt5_base at step 1,000,000; `checkpoint`
    is another. All else: as `ro_t5_base`, with mT5's vocabulary, learning rate 0.4/√step and
    checkpoints every 25,000 steps of which 3 are kept; to step 2,000,000, so 1,000,000 updates.
    Command: `python -m mtf.run recipes.ro_mt5_base`.
    Hardware: TPU v4-8.
    Expect: no score was published; dumitrescustefan/mt5-base-romanian went on to 4M steps.
    """
    return _pretrain(_MT5_BASE, files, vocabulary, normalization, checkpoint)


def ro_mt5_large(
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Romanian mT5 large (1.2B): mT5's pretraining goes on in Romanian.

    Source: `ro_mt5x_large.gin`. Source checkpoint: T5X's mt5_large at step 1,000,000; `checkpoint`
    is another. All else: as `ro_t5_base`, with mT5's vocabulary, targets of 512, learning rate
    0.5/√step and 3 checkpoints kept; to step 1,500,000, so 500,000 updates.
    Command: `python -m mtf.run recipes.ro_mt5_large`; on your own text
    `python -m mtf.run "recipes.ro_mt5_large(files='ro.txt', vocabulary='mt5.model')"`.
    Hardware: TPU v4-32.
    Expect: no score was published.
    """
    return _pretrain(_MT5_LARGE, files, vocabulary, normalization, checkpoint)


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
        if not first_step:  # The rate still counts the steps of the start.
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
