"""Trains T0 by multitask prompted fine-tuning and evaluates it by rank.

The sources are section 5 of the paper (Sanh et al. 2022, https://arxiv.org/abs/2110.08207),
training/README.md of bigscience-workshop/t-zero for the command that trains T0++, and
mesh_tensorflow/transformer/utils.py for the defaults of this command.
"""

from __future__ import annotations

import fiddle as fdl

from mtf import builders
from mtf.data import TaskMixtureConfig
from mtf.evaluation import RankFilesConfig
from mtf.jobs import Evaluate, Train
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES, PartitionerConfig
from mtf.training import AdafactorConfig, TrainerConfig
from recipes.family import member

_LENGTHS = {"inputs": 1024, "targets": 256}
_MODEL_PARALLELISM = 8
_NUM_REPLICAS = 512 // _MODEL_PARALLELISM  # A v3-512 has 512 cores.


def _t0(
    size_and_mixture: tuple[str, str],
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.T5_PATH,
    checkpoint: str | None = None,
    tokens_per_batch: int = 1_048_576,
) -> fdl.Config[Train]:
    """Trains MODEL, by fine-tuning LM-adapted T5.

    | recipe                      | size | mixture                                 | paper       |
    |-----------------------------|------|-----------------------------------------|-------------|
    | `t0pp_xxl`                  | XXL  | `t0++_train` (54 datasets)              | section 5   |
    | `t0p_xxl`                   | XXL  | `t0+_train`                             | section 5   |
    | `t0_xxl`                    | XXL  | `t0_train` (38 datasets)                | section 5   |
    | `t0_3b`                     | XL   | `t0_train` (38 datasets)                | appendix    |
    | `t0_single_prompt_xxl`      | XXL  | `t0_train_one_og_prompt` (35 datasets)  | section 6.2 |
    | `t0_original_task_only_xxl` | XXL  | `t0_train_all_og_prompts`               | section 6.2 |

    Paper: Sanh et al. 2022, https://arxiv.org/abs/2110.08207. Its appendix lists the datasets.
    Three of the 38 have no prompt for their original task. `t0_train_all_og_prompts` has 5.7
    prompts per dataset.
    Source checkpoint: T5X's t5_1_1_lm100k_SIZE at step 1,100,000.
    The original command: `t5_mesh_transformer` with the operative config of the initial checkpoint
    (t5.1.1.lm100k.SIZE). It trains on the cached mixture to step 1,112,200 with a learning rate of
    0.001, 1,048,576 tokens per batch, inputs of 1024 tokens, targets of 256 tokens, 2,048 tokens
    per microbatch and replica, and a model parallelism of 8.
    Command: `python -m mtf.cache MIXTURE`, then `python -m mtf.run recipes.NAME`. To render and
    tokenize the examples during training, add `--set data.loader=seqio`.
    Hardware: TPU v3-512, whose 512 cores form 64 replicas of 8 partitions each. For XL, the
    hardware is not stated.
    Expect: these rank accuracies (mean over prompts; the star marks training datasets).

    |            | `t0pp_xxl` | `t0p_xxl` | `t0_xxl` | `t0_3b` |
    |------------|------------|-----------|----------|---------|
    | RTE        | 85.3       | 67.5      | 80.8     | 64.6    |
    | CB         | 75.7       | 59.2      | 70.1     | 45.4    |
    | ANLI R1    | 47.1       | 43.5      | 43.6     | 33.8    |
    | ANLI R2    | 42.2       | 39.8      | 38.7     | 33.1    |
    | ANLI R3    | 44.1       | 40.8      | 41.3     | 33.3    |
    | WSC        | 70.3*      | 62.2      | 61.5     | 65.1    |
    | Winogrande | 66.4       | 62.5      | 59.9     | 51.0    |
    | COPA       | 93.7*      | 92.2      | 90.0     | 72.4    |
    | StoryCloze | 96.5       | 96.4      | 92.4     | 84.0    |
    | HellaSwag  | 86.1*      | 86.1*     | 33.6     | 27.3    |
    | WiC        | 70.0*      | 55.0      | 56.6     | 50.7    |

    Figures of the paper show that the medians over prompts of `t0_single_prompt_xxl` are lower than
    those of `t0_xxl`, with a wider spread; those of `t0_original_task_only_xxl` are between them.

    Deviations:
      * The initial checkpoint is T5X's conversion of the Mesh TensorFlow checkpoint.
      * The dropout rate is 0.1, as in the paper; the command uses that of the operative config.
      * The loss is divided by the number of target positions in a batch, including padding, which
        is Mesh TensorFlow's default. An operative config may set another constant, but this does
        not change Adafactor's updates (except for the epsilon of 1e-30).
      * The number of microbatches follows Mesh TensorFlow's rule for 64 replicas. In mtf,
        microbatches only save memory; the loss and the gradients do not depend on their number.
      * A packed row contains as many examples as fit, which is more than tensor2tensor packs.
      * A checkpoint is saved every 1,000 steps, and all checkpoints are kept. The command leaves
        these settings to the operative config.
      * Parameters are also split across the replicas, and activations across the partitions (T5X's
        2-D rules), because 1/8 of the parameters and of two sets of gradients exceeds the memory of
        a v3 core.
      * Attention is recomputed in the backward pass, which saves memory and does not change values.
      * Prompts with random choices use a fixed seed, so that another run renders the same text.

    Args:
      cache_dir: output of `python -m mtf.cache`; None for its default place.
      vocabulary: T5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
      tokens_per_batch: number of input tokens in a batch (the batch size times the input length).
    """
    size, mixture = size_and_mixture
    start = builders.checkpoint.start(f"t5_1_1_lm100k_{size}", checkpoint)
    # Mesh TensorFlow divides by the input length or the target length, whichever is larger.
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


t0pp_xxl = member(
    _t0, ("xxl", "t0++_train"), "t0pp_xxl", "T0++ (11B) on all 54 training datasets of T0"
)
t0p_xxl = member(
    _t0,
    ("xxl", "t0+_train"),
    "t0p_xxl",
    "T0+ (11B) on T0's datasets and the datasets of GPT-3's evaluation",
)
t0_xxl = member(
    _t0, ("xxl", "t0_train"), "t0_xxl", "T0 (11B) on the 38 datasets of T0's training mixture"
)
t0_3b = member(
    _t0, ("xl", "t0_train"), "t0_3b", "T0 3B on the 38 datasets of T0's training mixture"
)
t0_single_prompt_xxl = member(
    _t0,
    ("xxl", "t0_train_one_og_prompt"),
    "t0_single_prompt_xxl",
    "T0 Single Prompt (11B) on one prompt for the original task of each dataset",
)
t0_original_task_only_xxl = member(
    _t0,
    ("xxl", "t0_train_all_og_prompts"),
    "t0_original_task_only_xxl",
    "T0 Original Task Only (11B) on all prompts for the original task of each dataset",
)


def t0_eval(
    checkpoint: str | None = None,
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str | None = None,
    tokens_per_batch: int = 262_144,
    files: str | tuple[str, ...] | None = None,
) -> fdl.Config[Evaluate]:
    """Evaluates a T0 model by rank on the nine held-out datasets.

    Paper: sections 5 and 6, and the table of all results in the appendix.
    Source checkpoint: the checkpoint to evaluate, such as step 1,112,200 of `t0pp_xxl`.
    The original command: `t5_mesh_transformer` with `score_eval`. It evaluates the validation split
    of the cached mixture `t0_eval_score_eval` with 262,144 tokens per batch and a model
    parallelism of 4.
    Command: `python -m mtf.run recipes.t0_eval --set checkpoint=RUN`. To evaluate another mixture
    of ranked tasks, add `--set data.mixture_or_task_name=t0_train_score_eval`. To evaluate your own
    data, run `python -m mtf.run "recipes.t0_eval(checkpoint='RUN', files='mine.jsonl')"`.
    Missing datasets (for example Story Cloze, which must be requested with a form) are skipped; the
    terminal and the report name them. To make missing datasets an error, add
    `--set data.allow_missing_tasks=False`.
    Hardware: TPU v3-128, whose 128 cores form 32 replicas of 4 partitions each. On fewer devices,
    add `--set partitioner.num_partitions=1 batch_size=32`.
    Expect: the scores of `t0pp_xxl`, `t0p_xxl`, `t0_xxl` and `t0_3b`.

    Deviations:
      * There are no microbatches; the command uses 2,048 tokens per microbatch.
      * Activations are float32, so that predictions do not depend on the batch size or the devices;
        the models were trained with bfloat16.
      * The inputs of an example are encoded only once for all of its choices; a batch contains as
        many input tokens as 256 examples of the maximum length.

    Args:
      checkpoint: run directory or checkpoint to evaluate; it must be set before the job runs.
      cache_dir: output of `python -m mtf.cache t0_eval_score_eval`; None to render and tokenize the
        datasets during the evaluation.
      vocabulary: SentencePiece model; None for T5's or, with `files`, the checkpoint's vocabulary.
      tokens_per_batch: number of input tokens in a batch (the batch size times the input length).
      files: JSON Lines files with inputs, choices and label, which are evaluated instead of the
        mixture. Model parallelism is not used for files.
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
    """Returns how many microbatches of up to 2,048 tokens per replica Mesh TensorFlow uses."""
    per_replica = max(1, batch_size // _NUM_REPLICAS)
    size = 2048 // _LENGTHS["inputs"]
    while per_replica % size:
        size -= 1
    return per_replica // size
