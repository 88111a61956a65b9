"""T0: multitask prompted fine-tuning, and rank evaluation (https://arxiv.org/abs/2110.08207).

Sources: section 5 of the paper (Sanh et al. 2022); bigscience-workshop/t-zero, training/README.md,
for the command of T0++; mesh_tensorflow/transformer/utils.py for the command's defaults.
"""

from __future__ import annotations

import fiddle as fdl

from mtf import builders
from mtf.data import TaskMixtureConfig
from mtf.evaluation import RankFilesConfig
from mtf.jobs import Evaluate, Train
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES, PartitionerConfig
from mtf.training import AdafactorConfig, TrainerConfig

_LENGTHS = {"inputs": 1024, "targets": 256}
_MODEL_PARALLELISM = 8
_NUM_REPLICAS = 512 // _MODEL_PARALLELISM  # A v3-512 has 512 cores.


def t0pp_xxl(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    checkpoint: str | None = None,
    tokens_per_batch: int = 1_048_576,
) -> fdl.Config[Train]:
    """T0++ (11B): fine-tunes LM-adapted T5 XXL on all 54 training datasets of T0.

    Paper: section 5; the appendix lists the datasets.
    Source checkpoint: T5X's t5_1_1_lm100k_xxl at step 1,100,000.
    The original command: `t5_mesh_transformer` on the cached mixture `t0++_train`, with the
    operative config of the initial checkpoint, learning rate 0.001, 1,048,576 tokens per batch,
    inputs of 1024 and targets of 256 tokens, 2,048 tokens per microbatch and replica, model
    parallelism 8, to step 1,112,200.
    Command: `python -m mtf.cache t0++_train --output CACHE`, then
    `python -m mtf.run "recipes.t0pp_xxl(cache_dir='CACHE')"`.
    Hardware: TPU v3-512 (512 cores: 64 replicas of 8 partitions each).
    Expect: rank accuracy, mean over prompts: RTE 85.3, CB 75.7, ANLI R1 47.1, R2 42.2, R3 44.1,
    WSC 70.3, Winogrande 66.4, COPA 93.7, StoryCloze 96.5, HellaSwag 86.1, WiC 70.0. WSC, COPA,
    HellaSwag and WiC are among the training datasets.

    Deviations, the same for all recipes of the family:
      * The initial checkpoint is T5X's conversion of Mesh TensorFlow's.
      * Dropout is 0.1, as in the paper; the command takes it from the operative config.
      * The loss is divided by the number of target positions in a batch, including padding, as is
        Mesh TensorFlow's default. An operative config may have another constant; it does not change
        Adafactor's updates (except for the epsilon of 1e-30).
      * The number of microbatches follows Mesh TensorFlow's rule for 64 replicas. Here they only
        save memory: loss and gradients do not depend on them.
      * Packing puts as many examples into a row as fit, more than tensor2tensor's.
      * A checkpoint every 1,000 steps, all kept; the command leaves both to the operative config.
      * Parameters are split over the replicas, too, and activations over the partitions (T5X's 2-D
        rules), since parameters and two sets of gradients in 8 parts exceed a core of a v3.
      * Attention is recomputed in the backward pass, which saves memory and changes no value.
      * Prompts with random choices use a fixed seed, so that a rerun renders the same text.

    Args:
      cache_dir: output of `python -m mtf.cache`, which must be set unless
        `--set data.loader=seqio` renders and tokenizes during training.
      vocabulary: T5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
      tokens_per_batch: number of input tokens in a batch: the batch size times the input length.
    """
    return _train("xxl", "t0++_train", cache_dir, vocabulary, checkpoint, tokens_per_batch)


def t0p_xxl(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    checkpoint: str | None = None,
    tokens_per_batch: int = 1_048_576,
) -> fdl.Config[Train]:
    """T0+ (11B): as T0++, on the datasets of T0 and those of GPT-3's evaluation.

    Paper: section 5. All else: as `t0pp_xxl`, with mixture `t0+_train`.
    Command: `python -m mtf.run "recipes.t0p_xxl(cache_dir='CACHE')"`.
    Hardware: TPU v3-512.
    Expect: rank accuracy, mean over prompts: RTE 67.5, CB 59.2, ANLI R1 43.5, R2 39.8, R3 40.8,
    WSC 62.2, Winogrande 62.5, COPA 92.2, StoryCloze 96.4, HellaSwag 86.1 (trained on), WiC 55.0.
    """
    return _train("xxl", "t0+_train", cache_dir, vocabulary, checkpoint, tokens_per_batch)


def t0_xxl(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    checkpoint: str | None = None,
    tokens_per_batch: int = 1_048_576,
) -> fdl.Config[Train]:
    """T0 (11B): as T0++, on the 38 datasets of T0's own training mixture.

    Paper: section 5. All else: as `t0pp_xxl`, with mixture `t0_train`.
    Command: `python -m mtf.run "recipes.t0_xxl(cache_dir='CACHE')"`.
    Hardware: TPU v3-512.
    Expect: rank accuracy, mean over prompts: RTE 80.8, CB 70.1, ANLI R1 43.6, R2 38.7, R3 41.3,
    WSC 61.5, Winogrande 59.9, COPA 90.0, StoryCloze 92.4, HellaSwag 33.6, WiC 56.6.
    """
    return _train("xxl", "t0_train", cache_dir, vocabulary, checkpoint, tokens_per_batch)


def t0_3b(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    checkpoint: str | None = None,
    tokens_per_batch: int = 1_048_576,
) -> fdl.Config[Train]:
    """T0 3B: T0's mixture on LM-adapted T5 XL.

    Paper: appendix (T0 at 3B). Source checkpoint: T5X's t5_1_1_lm100k_xl at step 1,100,000.
    All else: as `t0pp_xxl`, with mixture `t0_train` and the operative config of t5.1.1.lm100k.xl.
    Command: `python -m mtf.run "recipes.t0_3b(cache_dir='CACHE')"`.
    Hardware: TPU v3-512 in the command for XXL; none is named for this size.
    Expect: rank accuracy, mean over prompts: RTE 64.6, CB 45.4, ANLI R1 33.8, R2 33.1, R3 33.3,
    WSC 65.1, Winogrande 51.0, COPA 72.4, StoryCloze 84.0, HellaSwag 27.3, WiC 50.7.
    """
    return _train("xl", "t0_train", cache_dir, vocabulary, checkpoint, tokens_per_batch)


def t0_single_prompt_xxl(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    checkpoint: str | None = None,
    tokens_per_batch: int = 1_048_576,
) -> fdl.Config[Train]:
    """T0 Single Prompt (11B): one prompt per dataset, for its original task.

    Paper: section 6.2 (the effect of more prompts). All else: as `t0pp_xxl`, with mixture
    `t0_train_one_og_prompt`: 35 datasets, because three have no prompt for their original task.
    Command: `python -m mtf.run "recipes.t0_single_prompt_xxl(cache_dir='CACHE')"`.
    Hardware: TPU v3-512.
    Expect: medians over prompts below those of `t0_xxl`, and a wider spread (in figures only).
    """
    return _train(
        "xxl", "t0_train_one_og_prompt", cache_dir, vocabulary, checkpoint, tokens_per_batch
    )


def t0_original_task_only_xxl(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    checkpoint: str | None = None,
    tokens_per_batch: int = 1_048_576,
) -> fdl.Config[Train]:
    """T0 Original Task Only (11B): all prompts for the original task of a dataset.

    Paper: section 6.2 (5.7 prompts per dataset). All else: as `t0pp_xxl`, with mixture
    `t0_train_all_og_prompts`.
    Command: `python -m mtf.run "recipes.t0_original_task_only_xxl(cache_dir='CACHE')"`.
    Hardware: TPU v3-512.
    Expect: medians between those of `t0_single_prompt_xxl` and `t0_xxl` (in figures only).
    """
    return _train(
        "xxl", "t0_train_all_og_prompts", cache_dir, vocabulary, checkpoint, tokens_per_batch
    )


def t0_eval(
    checkpoint: str | None = None,
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str | None = None,
    tokens_per_batch: int = 262_144,
    files: str | tuple[str, ...] | None = None,
) -> fdl.Config[Evaluate]:
    """Rank evaluation of a T0 model on the nine held-out datasets.

    Paper: sections 5 and 6, and the table of all results in the appendix.
    Source checkpoint: the one to evaluate, such as step 1,112,200 of `t0pp_xxl`.
    The original command: `t5_mesh_transformer` with `score_eval` on the cached mixture
    `t0_eval_score_eval`, split validation, 262,144 tokens per batch, model parallelism 4.
    Command: `python -m mtf.run recipes.t0_eval --set checkpoint=RUN`.
    Another mixture of ranked tasks: `--set data.mixture_or_task_name=t0_train_score_eval`.
    Your own data: `python -m mtf.run "recipes.t0_eval(checkpoint='RUN', files='mine.jsonl')"`.
    Datasets that cannot be found, such as Story Cloze, which is available only through a form, are
    left out; the terminal and the report name them. `--set data.allow_missing_tasks=False` refuses
    to evaluate without them.
    Hardware: TPU v3-128 (128 cores: 32 replicas of 4 partitions each). On fewer devices:
    `--set partitioner.num_partitions=1 batch_size=32`.
    Expect: the scores of `t0pp_xxl`, `t0p_xxl`, `t0_xxl` and `t0_3b`.

    Deviations:
      * There are no microbatches; the command has 2,048 tokens per microbatch.
      * Activations are float32, so that predictions do not depend on batch size and devices; the
        models were trained with bfloat16.
      * The inputs of an example are encoded once for all its choices; a batch has as many input
        tokens as 256 of the longest examples.

    Args:
      checkpoint: run directory or checkpoint to evaluate; it must be set before the job runs.
      cache_dir: output of `python -m mtf.cache t0_eval_score_eval`; None renders and tokenizes the
        datasets during the evaluation.
      vocabulary: SentencePiece model; None means T5's, or with `files` that of the checkpoint.
      tokens_per_batch: number of input tokens in a batch: the batch size times the input length.
      files: JSON lines with inputs, choices and label, which are evaluated instead of the mixture
        without model parallelism.
    """
    if files is not None:
        words = None if vocabulary is None else builders.vocabulary.t5(vocabulary)
        return fdl.Config(
            Evaluate,
            checkpoint=checkpoint,
            data=fdl.Config(
                RankFilesConfig, files=files, vocabulary=words, task_feature_lengths=dict(_LENGTHS)
            ),
            partitioner=fdl.Config(PartitionerConfig),
        )
    vocabulary = vocabulary or builders.vocabulary.T5_PATH
    data = _mixture("t0_eval_score_eval", cache_dir, vocabulary, pack=False)
    data.allow_missing_tasks = True
    return fdl.Config(
        Evaluate,
        checkpoint=checkpoint,
        data=data,
        batch_size=tokens_per_batch // _LENGTHS["inputs"],
        partitioner=fdl.Config(PartitionerConfig, num_partitions=4),
    )


def _train(
    size: str,
    mixture: str,
    cache_dir: str | tuple[str, ...] | None,
    vocabulary: str,
    checkpoint: str | None,
    tokens_per_batch: int,
) -> fdl.Config[Train]:
    start = builders.checkpoint.start(f"t5_1_1_lm100k_{size}", checkpoint)
    # Mesh TensorFlow divides by the larger of the input length and the target length.
    batch_size = tokens_per_batch // _LENGTHS["inputs"]
    model = builders.model.t5_1_1(size, dropout_rate=0.1, remat_policy="minimal")
    model.loss_normalizing_factor = "NUM_TOTAL_TARGET_TOKENS"
    return fdl.Config(
        Train,
        model=model,
        data=_mixture(mixture, cache_dir, vocabulary),
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.constant(1e-3)),
        train_steps=start.step + 12_200,
        batch_size=batch_size,
        trainer=fdl.Config(
            TrainerConfig, num_microbatches=_num_microbatches(batch_size), eval_period=None
        ),
        partitioner=fdl.Config(
            PartitionerConfig,
            num_partitions=_MODEL_PARALLELISM,
            logical_axis_rules=FULLY_SHARDED_AXIS_RULES,
        ),
        checkpoint=builders.checkpoint.every(1000, restore=start),
    )


def _mixture(
    name: str, cache_dir: str | tuple[str, ...] | None, vocabulary: str, *, pack: bool = True
) -> fdl.Config:
    return fdl.Config(
        TaskMixtureConfig,
        mixture_or_task_name=name,
        vocabulary=builders.vocabulary.t5(vocabulary),
        task_feature_lengths=dict(_LENGTHS),
        cache_dir=cache_dir,
        pack=pack,
    )


def _num_microbatches(batch_size: int) -> int:
    """Returns Mesh TensorFlow's number for 2,048 tokens per microbatch and replica."""
    per_replica = max(1, batch_size // _NUM_REPLICAS)
    size = 2048 // _LENGTHS["inputs"]
    while per_replica % size:
        size -= 1
    return per_replica // size
