"""Pretrains and fine-tunes T5 1.1 as T5X does.

The sources are T5X at commit cc342d4 (docs/usage/pretrain.md and finetune.md,
configs/runs/{pretrain,finetune}.gin, examples/t5/t5_1_1/examples/{small,base}_c4_pretrain.gin and
small_wmt_finetune.gin) and Raffel et al. 2020 (https://arxiv.org/abs/1910.10683).
"""

from __future__ import annotations

from typing import Any, Literal

import fiddle as fdl

from mtf import builders
from mtf.data import HubStreamConfig, SpanCorruption, TaskMixtureConfig, TextFilesConfig
from mtf.evaluation import InferEvalConfig
from mtf.jobs import Train
from mtf.partitioning import PartitionerConfig
from mtf.training import AdafactorConfig, TrainerConfig
from recipes.family import member


def _t5_1_1_c4(
    size: str,
    files: str | tuple[str, ...] | None = None,
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    train_steps: int = 100_000,
    use_cached_tasks: bool = False,
) -> fdl.Config[Train]:
    """Trains T5 1.1 MODEL from scratch with span corruption on C4.

    | recipe            | parameters | gin file of T5X       | evaluates every | partitions |
    |-------------------|------------|-----------------------|-----------------|------------|
    | `t5_1_1_small_c4` | 77M        | small_c4_pretrain.gin | 1,000 steps     | 1          |
    | `t5_1_1_base_c4`  | 248M       | base_c4_pretrain.gin  | 2,000 steps     | 1          |
    | `t5_1_1_large_c4` | 783M       | none                  | 1,000 steps     | 1          |
    | `t5_1_1_xl_c4`    | 2.8B       | none                  | 1,000 steps     | 8          |
    | `t5_1_1_xxl_c4`   | 11B        | none                  | 1,000 steps     | 8          |

    Paper: Raffel et al. 2020, section 3.1.4 (the objective). Source checkpoint: none.
    The original command: T5X's `train.py` with the gin file. It trains on the task
    `c4_v220_span_corruption` with 512 input tokens and 114 target tokens in each packed row, a
    batch size of 256, no dropout, and Adafactor with the learning rate 1/√max(step, 10,000). An
    evaluation takes 20 batches. For the sizes without a gin file, the settings are those of small.
    Command: `python -m mtf.run recipes.NAME`, which streams C4 from the Hugging Face hub. To train
    on your own text, run `python -m mtf.run "recipes.NAME(files='en.txt')"`. To train from a token
    cache, first run `python -m mtf.cache c4_v220_span_corruption --output CACHE`, then
    `python -m mtf.run "recipes.NAME(cache_dir='CACHE')"`. To read the output of
    `seqio_cache_tasks` through SeqIO, as T5X does (USE_CACHED_TASKS), run
    `python -m mtf.run "recipes.NAME(cache_dir='DIR', use_cached_tasks=True)"`. To make runs resume
    exactly and immediately, convert this output to a token cache with
    `python -m mtf.cache c4_v220_span_corruption --from-seqio DIR --output CACHE`.
    Hardware: not stated by T5X. In float32, the 8 partitions of the parameters take 11 GB in total
    for XL and 45 GB for XXL.
    Expect: T5X does not state a score. The released t5_1_1_small was trained for 1,000,000
    steps with a batch size of 2,048.

    Deviations:
      * The number of steps is 100,000, as in T5X's documentation and in the gin file for base.
        The gin file for small says 10,000 (`train_steps=10_000`), the step at which warmup ends.
      * Without a cache, allenai/c4 on the hub (version 3.0.1) is streamed instead of version 2.2.0
        of TFDS.
      * XL and XXL are split across 8 partitions, as in Mesh TensorFlow's configuration, and layers
        are recomputed in the backward pass.
      * The seeds are fixed and the position of the data iterator is saved. pretrain.gin draws new
        seeds at every start. `--apply deterministic` sets the seeds given in T5X's documentation.

    Args:
      files: text files to use instead of C4.
      cache_dir: token cache of `c4_v220_span_corruption` to use instead of the stream.
      vocabulary: T5's SentencePiece model.
      train_steps: number of updates.
      use_cached_tasks: whether `cache_dir` contains SeqIO caches rather than a token cache.
    """
    text = _text(vocabulary, 512, 114)
    if files is None and cache_dir is None and not use_cached_tasks:
        data = fdl.Config(
            HubStreamConfig,
            dataset="allenai/c4",
            subsets={"en": 1.0},
            objective=fdl.Config(SpanCorruption),
            **text,
        )
    else:
        task = "c4_v220_span_corruption" if files is None else None
        data = _data(files, task, cache_dir, use_cached_tasks, text)
    return fdl.Config(
        Train,
        model=_model(size, dropout_rate=0.0),
        data=data,
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.rsqrt(1.0, warmup_steps=10_000)),
        train_steps=train_steps,
        batch_size=256,
        trainer=fdl.Config(
            TrainerConfig, eval_period=2000 if size == "base" else 1000, eval_steps=20
        ),
        partitioner=_partitioner(size),
        checkpoint=builders.checkpoint.every(1000),
    )


t5_1_1_small_c4 = member(_t5_1_1_c4, "small", "t5_1_1_small_c4", "small (77M)")
t5_1_1_base_c4 = member(_t5_1_1_c4, "base", "t5_1_1_base_c4", "base (248M)")
t5_1_1_large_c4 = member(_t5_1_1_c4, "large", "t5_1_1_large_c4", "large (783M)")
t5_1_1_xl_c4 = member(_t5_1_1_c4, "xl", "t5_1_1_xl_c4", "XL (2.8B)")
t5_1_1_xxl_c4 = member(_t5_1_1_c4, "xxl", "t5_1_1_xxl_c4", "XXL (11B)")


def t5_1_1_finetune(
    files: str | tuple[str, ...] = "train.tsv",
    mixture: str | None = None,
    cache_dir: str | tuple[str, ...] | None = None,
    size: Literal["small", "base", "large", "xl", "xxl"] = "small",
    vocabulary: str = builders.vocabulary.T5_PATH,
    checkpoint: str | None = None,
    lengths: tuple[int, int] = (256, 256),
    finetuning_steps: int = 20_000,
    use_cached_tasks: bool = False,
) -> fdl.Config[Train]:
    """Fine-tunes T5 1.1 on pairs of inputs and targets, or on a mixture, as in T5X's documentation.

    Paper: Raffel et al. 2020, section 3.1.2 (constant rate). Source checkpoint: T5X's t5_1_1_SIZE
    at step 1,000,000.
    The original command: T5X's `train.py` with small_wmt_finetune.gin. It trains on WMT English to
    German for 20,000 steps with inputs and targets of 256 tokens, a batch size of 128, and
    Adafactor with a constant learning rate of 0.001. The loss is divided by 233,472 (2,048 · 114),
    the number of target tokens in a pretraining batch. A checkpoint is saved every 5,000 steps.
    Every 1,000 steps, the loss of 20 batches is computed, and all held-out inputs are decoded and
    compared with their targets (T5X's infer_eval).
    Command: `python -m mtf.run "recipes.t5_1_1_finetune(files='train.tsv', size='base')"`. To use a
    cached mixture, run `python -m mtf.run "recipes.t5_1_1_finetune(mixture='t0_train',
    cache_dir='CACHE')"`.
    Hardware: not stated by T5X.
    Expect: the result depends on the task; T5X does not state a score.

    Deviations:
      * The data are yours. To use the WMT task of T5X's example, install the package `t5` (see
        docs/tasks.md), pass `mixture='wmt_t2t_ende_v003'` and add
        `--set data.module=t5.data.mixtures`.
      * The dropout rate is 0.1, as in finetune.gin and as recommended by the release of T5 1.1.
        T5X's example turns dropout off (`--set model.network.dropout_rate=0`).
      * For files, whose task is unknown, the metric is exact match; to use WMT's metric, add
        `--set "evaluator.metrics=('bleu',)"`. For a mixture, the metrics of its tasks are used. To
        decode fewer examples, add `--set evaluator.num_examples=100`; to decode none, add
        `--set evaluator=None`.
      * XL and XXL are split across 8 partitions, and layers are recomputed in the backward pass.
      * The seeds are fixed, whereas finetune.gin draws new seeds at every start.

    Args:
      files: `.csv`, `.tsv` or `.jsonl` files of pairs, which are ignored if `mixture` is set.
      mixture: name of a mixture or task.
      cache_dir: token cache of the mixture; None to render and tokenize the examples with SeqIO.
      size: size of T5 1.1.
      vocabulary: T5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
      lengths: maximum numbers of input and target tokens.
      finetuning_steps: number of updates.
      use_cached_tasks: whether `cache_dir` contains SeqIO caches rather than a token cache.
    """
    start = builders.checkpoint.start(f"t5_1_1_{size}", checkpoint)
    model = _model(size, dropout_rate=0.1)
    model.loss_normalizing_factor = 2048 * 114
    return fdl.Config(
        Train,
        model=model,
        data=_data(files, mixture, cache_dir, use_cached_tasks, _text(vocabulary, *lengths)),
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.constant(1e-3)),
        train_steps=start.step + finetuning_steps,
        batch_size=128,
        trainer=fdl.Config(TrainerConfig, eval_period=1000, eval_steps=20),
        evaluator=fdl.Config(InferEvalConfig, period=1000, num_examples=None),
        partitioner=_partitioner(size),
        checkpoint=builders.checkpoint.every(5000, restore=start),
    )


def _model(size: str, dropout_rate: float) -> fdl.Config:
    remat: Literal["full", "none"] = "full" if size in ("xl", "xxl") else "none"
    return builders.model.t5_1_1(size, dropout_rate=dropout_rate, remat_policy=remat)


def _partitioner(size: str) -> fdl.Config[PartitionerConfig]:
    return fdl.Config(PartitionerConfig, 8 if size in ("xl", "xxl") else 1)


def _text(vocabulary: str, inputs_length: int, targets_length: int) -> dict[str, Any]:
    lengths = {"inputs": inputs_length, "targets": targets_length}
    return {"vocabulary": builders.vocabulary.t5(vocabulary), "task_feature_lengths": lengths}


def _data(
    files: str | tuple[str, ...] | None,
    mixture: str | None,
    cache_dir: str | tuple[str, ...] | None,
    use_cached_tasks: bool,
    text: dict[str, Any],
) -> fdl.Config:
    """Returns the data config of `mixture` or, if `mixture` is None, of `files`."""
    if mixture is None:
        return fdl.Config(
            TextFilesConfig, files=files, objective=fdl.Config(SpanCorruption), **text
        )
    return fdl.Config(
        TaskMixtureConfig,
        mixture_or_task_name=mixture,
        loader="seqio" if cache_dir is None or use_cached_tasks else "cache",
        cache_dir=cache_dir,
        use_cached=use_cached_tasks,
        **text,
    )
