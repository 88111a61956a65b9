"""The Romanian T5 and mT5: span corruption on a Romanian corpus, streamed.

Source: https://github.com/dumitrescustefan/t5x_models, `ro_*.gin`, `ro_*_pretrain.gin`,
`ro_*_tasks.py` and README.md. There is no paper.
"""

from __future__ import annotations

import fiddle as fdl

from mtf import builders
from mtf.checkpoints import CheckpointConfig, SaveCheckpointConfig
from mtf.data import HubStreamConfig, SentencePieceVocabulary, SpanCorruption, TextFilesConfig
from mtf.jobs import Train
from mtf.partitioning import PartitionerConfig
from mtf.text.normalization import Normalization
from mtf.training import AdafactorConfig, TrainerConfig

# The original's own model, in a bucket that is not public.
_ROMANIAN_PATH = "gs://myv4-bucket/sentencepiece/ro.model"
_ROMANIAN_PIECES = 64_000


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
    dumitrescustefan/rlm from the Hugging Face hub; on text of your own
    `python -m mtf.run "recipes.ro_t5_base(files='ro.txt', vocabulary='ro.model')"`.
    Hardware: TPU v4-8; a million steps in less than a week.
    Expect: no score was published. dumitrescustefan's models on the hub went on to 4M steps.

    Deviations, the same for all four:
      * The seeds of order and dropout are fixed and the place in the stream is saved. The original
        drew new ones at every start, so each restart replayed the stream from its beginning.
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
    return _pretrain(
        builders.model.t5_1_1("base", vocab_size=_ROMANIAN_PIECES, dropout_rate=0.0),
        _romanian(vocabulary),
        files=files,
        normalization=normalization,
        targets_length=256,
        train_steps=2_000_000,
        learning_rate=1.0,
        num_partitions=2,
        period=10_000,
        keep=5,
    )


def ro_t5_large(
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = _ROMANIAN_PATH,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Romanian T5 1.1 large (848M): span corruption from scratch, with a Romanian vocabulary.

    Source: `ro_t5x_large.gin`. Source checkpoint: none. Arguments and deviations: as `ro_t5_base`.
    The original command: as there, with targets of 512 and 4 partitions.

    Command: `python -m mtf.run "recipes.ro_t5_large(vocabulary='ro.model')"`.
    Hardware: TPU v4-32; 4 million steps in about three weeks.
    Expect: no score was published.
    """
    return _pretrain(
        builders.model.t5_1_1("large", vocab_size=_ROMANIAN_PIECES, dropout_rate=0.0),
        _romanian(vocabulary),
        files=files,
        normalization=normalization,
        targets_length=512,
        train_steps=2_000_000,
        learning_rate=1.0,
        num_partitions=4,
        period=10_000,
        keep=5,
    )


def ro_mt5_base(
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Romanian mT5 base (580M): mT5's pretraining goes on in Romanian.

    Source: `ro_mt5x_base.gin`. Source checkpoint: T5X's mt5_base at step 1,000,000.
    Arguments (and `checkpoint`, another start) and deviations: as `ro_t5_base`.
    The original command: as there, from mT5's checkpoint and with its vocabulary, with learning
    rate 0.4/√step, checkpoints every 25,000 steps of which 3 are kept; to step 2,000,000, so
    1,000,000 updates.

    Command: `python -m mtf.run recipes.ro_mt5_base`.
    Hardware: TPU v4-8.
    Expect: no score was published; dumitrescustefan/mt5-base-romanian went on to 4M steps.
    """
    return _pretrain(
        builders.model.mt5("base", dropout_rate=0.0),
        builders.vocabulary.mt5(vocabulary),
        files=files,
        normalization=normalization,
        targets_length=256,
        train_steps=1_000_000,
        learning_rate=0.4,
        num_partitions=2,
        period=25_000,
        keep=3,
        start="mt5_base",
        checkpoint=checkpoint,
    )


def ro_mt5_large(
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    normalization: Normalization = None,
) -> fdl.Config[Train]:
    """Romanian mT5 large (1.2B): mT5's pretraining goes on in Romanian.

    Source: `ro_mt5x_large.gin`. Source checkpoint: T5X's mt5_large at step 1,000,000.
    Arguments (and `checkpoint`, another start) and deviations: as `ro_t5_base`.
    The original command: as there, from mT5's checkpoint and with its vocabulary, with targets of
    512, learning rate 0.5/√step, 3 checkpoints kept; to step 1,500,000, so 500,000 updates.

    Command: `python -m mtf.run recipes.ro_mt5_large`; on text of your own
    `python -m mtf.run "recipes.ro_mt5_large(files='ro.txt', vocabulary='mt5.model')"`.
    Hardware: TPU v4-32.
    Expect: no score was published.
    """
    return _pretrain(
        builders.model.mt5("large", dropout_rate=0.0),
        builders.vocabulary.mt5(vocabulary),
        files=files,
        normalization=normalization,
        targets_length=512,
        train_steps=500_000,
        learning_rate=0.5,
        num_partitions=2,
        period=10_000,
        keep=3,
        start="mt5_large",
        checkpoint=checkpoint,
    )


def _romanian(path: str) -> fdl.Config:
    return fdl.Config(SentencePieceVocabulary, path, extra_ids=0)


def _pretrain(
    model: fdl.Config,
    vocabulary: fdl.Config,
    *,
    files: str | tuple[str, ...] | None,
    normalization: Normalization,
    targets_length: int,
    train_steps: int,
    learning_rate: float,
    num_partitions: int,
    period: int,
    keep: int,
    start: str | None = None,
    checkpoint: str | None = None,
) -> fdl.Config[Train]:
    """`train_steps` are those after the released checkpoint `start`, or another in its place."""
    schedule = builders.schedule.rsqrt(learning_rate, warmup_steps=10_000)
    restore = None
    if start is not None:
        restore = builders.checkpoint.start(start, checkpoint)
        train_steps += restore.step
        if not restore.step:  # The steps of the start count all the same.
            schedule.step_offset = -builders.checkpoint.RELEASED_STEPS[start]
    data: fdl.Config[HubStreamConfig] | fdl.Config[TextFilesConfig]
    lengths = {"inputs": 512, "targets": targets_length}
    if files is None:
        data = fdl.Config(
            HubStreamConfig,
            dataset="dumitrescustefan/rlm",
            vocabulary=vocabulary,
            task_feature_lengths=lengths,
            objective=fdl.Config(SpanCorruption),
            inputs_add_eos=False,
            normalization=normalization,
        )
    else:
        data = fdl.Config(
            TextFilesConfig,
            files=files,
            vocabulary=vocabulary,
            task_feature_lengths=lengths,
            objective=fdl.Config(SpanCorruption),
            inputs_add_eos=False,
            normalization=normalization,
        )
    return fdl.Config(
        Train,
        model=model,
        data=data,
        optimizer=fdl.Config(AdafactorConfig, schedule),
        train_steps=train_steps,
        batch_size=128,
        trainer=fdl.Config(TrainerConfig, eval_period=1000, eval_steps=20),
        partitioner=fdl.Config(PartitionerConfig, num_partitions),
        checkpoint=fdl.Config(
            CheckpointConfig,
            save=fdl.Config(SaveCheckpointConfig, period=period, keep=keep),
            restore=restore,
        ),
    )
