"""T0: settings of the original, and where they stand here. See `parity.py`."""

from __future__ import annotations

from mtf.partitioning import FULLY_SHARDED_AXIS_RULES
from tests.recipes.rows import (
    REMAT,
    T5_VOCABULARY,
    T5X,
    Row,
    adafactor,
    lengths,
    network,
    schedule,
    vocabulary,
)

T0_TRAIN = (
    "t0pp_xxl",
    "t0p_xxl",
    "t0_xxl",
    "t0_3b",
    "t0_single_prompt_xxl",
    "t0_original_task_only_xxl",
)
_MIXTURES = {
    "t0pp_xxl": "t0++_train",
    "t0p_xxl": "t0+_train",
    "t0_xxl": "t0_train",
    "t0_3b": "t0_train",
    "t0_single_prompt_xxl": "t0_train_one_og_prompt",
    "t0_original_task_only_xxl": "t0_train_all_og_prompts",
}

ROWS = [
    *(
        Row((name,), "MIXTURE_NAME", mixture, "data.mixture_or_task_name")
        for name, mixture in _MIXTURES.items()
    ),
    *(
        Row(
            (name,),
            "initial checkpoint (gin file) and its step",
            f"gs://t5-data/pretrained_models/t5.1.1.lm100k.{size}, 1100000",
            "checkpoint.restore.path",
            f"{T5X}/t5_1_1_lm100k_{size}/checkpoint_1100000",
            deviation="T5X's conversion of the same checkpoint",
        )
        for name, size in ((name, "xl" if name == "t0_3b" else "xxl") for name in T0_TRAIN)
    ),
    Row(T0_TRAIN, "run.train_steps", 1_112_200, "train_steps"),
    Row(
        T0_TRAIN,
        "tokens_per_batch",
        1_048_576,
        "batch_size",
        1024,
        derived="tokens per batch / 1,024 (the inputs length)",
    ),
    *lengths((*T0_TRAIN, "t0_eval"), "run.sequence_length", 1024, 256),
    Row(T0_TRAIN, "packing", True, "data.pack"),
    Row(
        (*T0_TRAIN, "t0_eval"),
        "use_cached",
        True,
        "data.loader",
        "cache",
        derived="what `python -m mtf.cache` writes",
    ),
    *schedule(T0_TRAIN, "constant", 0.001, None),
    *adafactor(T0_TRAIN),
    Row(
        T0_TRAIN,
        "AdafactorOptimizer.beta1",
        0.0,
        "optimizer.beta1",
        None,
        derived="both mean no first moment",
    ),
    Row(T0_TRAIN, "dropout (the paper's)", 0.1, "model.network.dropout_rate"),
    Row(
        T0_TRAIN,
        "Unitransformer.loss_denominator",
        None,
        "model.loss_normalizing_factor",
        "NUM_TOTAL_TARGET_TOKENS",
        derived="Mesh TensorFlow's default: all positions of the targets, padding included",
    ),
    Row(
        T0_TRAIN,
        "tokens_per_microbatch_per_replica",
        2048,
        "trainer.num_microbatches",
        8,
        derived="1,024 sequences on 512 / 8 = 64 replicas are 16 per replica, two at a time",
    ),
    Row(T0_TRAIN, "tpu_mesh_shape.model_parallelism", 8, "partitioner.num_partitions"),
    Row(T0_TRAIN, "evaluation during training", None, "trainer.eval_period"),
    Row(
        T0_TRAIN,
        "run.save_checkpoints_steps (the default)",
        5000,
        "checkpoint.save.period",
        1000,
        deviation=(
            "with a checkpoint only every 5,000 of 12,200 steps, "
            "a failure could cost 40% of the run"
        ),
    ),
    Row(T0_TRAIN, "run.keep_checkpoint_max (the default)", None, "checkpoint.save.keep"),
    Row(T0_TRAIN, "recomputation", None, "model.network.remat_policy", "minimal", deviation=REMAT),
    Row(
        T0_TRAIN,
        "layout (the operative config)",
        None,
        "partitioner.logical_axis_rules",
        FULLY_SHARDED_AXIS_RULES,
        deviation="8 parts of the parameters and of two sets of gradients exceed a core of a v3",
    ),
    *vocabulary((*T0_TRAIN, "t0_eval"), T5_VOCABULARY, 100),
    *network({name: "xl" if name == "t0_3b" else "xxl" for name in T0_TRAIN}, 32128),
    Row(("t0_eval",), "EVAL_MIXTURE_NAME", "t0_eval_score_eval", "data.mixture_or_task_name"),
    Row(("t0_eval",), "run.dataset_split", "validation", "data.eval_split"),
    Row(
        ("t0_eval",),
        "run.batch_size tokens_per_batch",
        262_144,
        "batch_size",
        256,
        derived="tokens per batch / 1,024 (the inputs length)",
    ),
    Row(("t0_eval",), "tpu_mesh_shape.model_parallelism", 4, "partitioner.num_partitions"),
    Row(
        ("t0_eval",),
        "eval_checkpoint_step",
        1_112_200,
        "checkpoint",
        None,
        derived="set by the recipe's argument `checkpoint`, which is required",
    ),
]
