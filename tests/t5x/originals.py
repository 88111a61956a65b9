"""Runs that recipes reproduce, in the words of T5X's gin files.

Values are those of the papers, pages and scripts that the recipes name; T0's command was of Mesh
TensorFlow, and is written here with T5X's names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import fiddle as fdl

import recipes


class Original(NamedTuple):
    """A run of T5X.

    Attributes:
      id: name of the recipe, with its arguments after a colon.
      recipe: returns the recipe's config.
      files: gin files in T5X's repository.
      text: bindings of the run's own gin file and command.
      differences: argument → gin's value and the lowered one (None: any), beside those of all runs.
    """

    id: str
    recipe: Callable[..., fdl.Config]
    files: tuple[str, ...]
    text: str
    differences: Mapping[str, Any]


def plain_text(text: str) -> str:
    """Returns bindings without indentation, with continued lines joined."""
    return "\n".join(line.strip() for line in text.splitlines()).replace("\\\n", "")


T5 = "t5x/examples/t5"
PRETRAIN, FINETUNE = "t5x/configs/runs/pretrain.gin", "t5x/configs/runs/finetune.gin"
EVAL, INFER = "t5x/configs/runs/eval.gin", "t5x/configs/runs/infer.gin"
RELEASED = "gs://t5-data/pretrained_models/t5x"

_EIGHT_PARTITIONS = "partitioning.PjitPartitioner.num_partitions = 8\n"
_NO_EVALUATION = """
    train_script.train.train_eval_dataset_cfg = None
    train_script.train.infer_eval_dataset_cfg = None
    train_script.train.inference_evaluator_cls = None
    train_script.train.eval_period = 0
"""
_TWO_DIMENSIONAL_RULES = """
    partitioning.standard_logical_axis_rules.activation_partitioning_dims = 2
    partitioning.standard_logical_axis_rules.parameter_partitioning_dims = 2
"""
# Of the gin files for XL and XXL in mT0's repository.
_FULLY_SHARDED = "partitioning.PjitPartitioner.num_partitions = 4\n" + _TWO_DIMENSIONAL_RULES


_C4 = Original(
    "t5_1_1_small_c4",
    functools.partial(recipes.t5_1_1_small_c4, train_steps=10_000),
    (f"{T5}/t5_1_1/examples/small_c4_pretrain.gin",),
    "USE_CACHED_TASKS = False",
    {},
)
_FINETUNED = Original(
    "t5_1_1_finetune",
    functools.partial(
        recipes.t5_1_1_finetune,
        **{"mixture": "t0_train", "size": "xxl", "lengths": (512, 128)},
        finetuning_steps=50_000,
    ),
    (f"{T5}/t5_1_1/xxl.gin", FINETUNE),
    f"""
        MIXTURE_OR_TASK_NAME = "t0_train"
        TASK_FEATURE_LENGTHS = {{"inputs": 512, "targets": 128}}
        TRAIN_STEPS = 1_050_000
        USE_CACHED_TASKS = False
        LOSS_NORMALIZING_FACTOR = 233472
        INITIAL_CHECKPOINT_PATH = "{RELEASED}/t5_1_1_xxl/checkpoint_1000000"
    """
    + _EIGHT_PARTITIONS,
    {},
)
# 1,048,576 tokens in a batch; 64 replicas of 16 sequences, 2,048 tokens at a time.
_T0 = Original(
    "t0pp_xxl",
    recipes.t0pp_xxl,
    (f"{T5}/t5_1_1/xxl.gin", FINETUNE),
    f"""
        MIXTURE_OR_TASK_NAME = "t0++_train"
        TASK_FEATURE_LENGTHS = {{"inputs": 1024, "targets": 256}}
        TRAIN_STEPS = 1_112_200
        BATCH_SIZE = 1024
        LOSS_NORMALIZING_FACTOR = 262144
        USE_CACHED_TASKS = False
        INITIAL_CHECKPOINT_PATH = "{RELEASED}/t5_1_1_lm100k_xxl/checkpoint_1100000"
        trainer.Trainer.num_microbatches = 8
        utils.SaveCheckpointConfig.period = 1000
    """
    + _NO_EVALUATION
    + _EIGHT_PARTITIONS
    + _TWO_DIMENSIONAL_RULES,
    {},
)
_MT0 = Original(
    "mt0_xxl",
    recipes.mt0_xxl,
    (f"{T5}/mt5/xxl.gin", FINETUNE),
    f"""
        MIXTURE_OR_TASK_NAME = "xP3"
        TASK_FEATURE_LENGTHS = {{"inputs": 1024, "targets": 1024}}
        TRAIN_STEPS = 1_030_000
        BATCH_SIZE = 512
        LOSS_NORMALIZING_FACTOR = "AVERAGE_PER_SEQUENCE"
        INITIAL_CHECKPOINT_PATH = "{RELEASED}/mt5_xxl/checkpoint_1000000"
        USE_CACHED_TASKS = False
        train/utils.DatasetConfig.pack = False
        train_eval/utils.DatasetConfig.pack = False
        train_script.train.infer_eval_dataset_cfg = None
        train_script.train.inference_evaluator_cls = None
        trainer.Trainer.num_microbatches = 4
        utils.SaveCheckpointConfig.period = 1000
    """
    + _FULLY_SHARDED,
    {"mixture_or_task_name": ("xP3", "text_files")},
)
_ROMANIAN = Original(
    "ro_mt5_base",
    recipes.ro_mt5_base,
    (f"{T5}/mt5/base.gin", PRETRAIN),
    f"""
        MIXTURE_OR_TASK_NAME = "rlm_span_corruption_stream"
        TASK_FEATURE_LENGTHS = {{"inputs": 512, "targets": 256}}
        TRAIN_STEPS = 2_000_000
        USE_CACHED_TASKS = False
        DROPOUT_RATE = 0.0
        BATCH_SIZE = 128
        partitioning.PjitPartitioner.num_partitions = 2
        utils.SaveCheckpointConfig.period = 25_000
        utils.SaveCheckpointConfig.keep = 3
        utils.create_learning_rate_scheduler.base_learning_rate = 0.4
        utils.RestoreCheckpointConfig.path = "{RELEASED}/mt5_base/checkpoint_1000000"
        utils.RestoreCheckpointConfig.mode = "specific"
    """,
    {"mixture_or_task_name": ("rlm_span_corruption_stream", "dumitrescustefan/rlm")},
)
# A recipe of each family; tests/recipes compares the values of all.
TRAIN = [_C4, _FINETUNED, _T0, _MT0, _ROMANIAN]


_RTE = "super_glue_rte_GPT_3_style"


def _of_checkpoint() -> list[Original]:
    lengths = '{"inputs": 1024, "targets": 256}'
    evaluated = f"""
        MIXTURE_OR_TASK_NAME = "t0_eval_score_eval"
        TASK_FEATURE_LENGTHS = {lengths}
        CHECKPOINT_PATH = "RUN"
        EVAL_OUTPUT_DIR = "OUT"
        utils.DatasetConfig.split = "validation"
    """
    # 262,144 tokens in a batch, model parallelism 4.
    of_t0 = """
        utils.DatasetConfig.batch_size = 256
        partitioning.PjitPartitioner.num_partitions = 4
    """
    inferred = f"""
        MIXTURE_OR_TASK_NAME = "{_RTE}"
        TASK_FEATURE_LENGTHS = {lengths}
        CHECKPOINT_PATH = "RUN"
        INFER_OUTPUT_DIR = "OUT"
        utils.DatasetConfig.split = "validation"
    """
    opened = {"model": None, "output_dir": None}  # those of the checkpoint and of the job
    return [
        Original("evaluate", recipes.evaluate, (EVAL,), evaluated, opened),
        Original("t0_eval", recipes.t0_eval, (EVAL,), evaluated + of_t0, opened),
        Original(
            "infer",
            functools.partial(recipes.infer, mixture_or_task_name=_RTE),
            (INFER,),
            inferred,
            {
                **opened,
                # mtf infers in the dtype of the job, and saves its place after each 32 batches.
                "dtype": ("bfloat16", "float32"),
                "checkpoint_period": (100, 32),
            },
        ),
    ]


# The recipes take the path of a checkpoint.
OF_CHECKPOINT = _of_checkpoint()

# T5X's Fiddle configs: name, our config, and differences as in `Original`.
FIDDLE: list[tuple[str, Callable[[], fdl.Config], Mapping[str, Any]]] = [
    ("small_c4_pretrain", functools.partial(recipes.t5_1_1_small_c4, train_steps=10_000), {}),
    (
        "small_wmt_finetune",
        functools.partial(recipes.t5_1_1_finetune, mixture="wmt_t2t_ende_v003"),
        {"dropout_rate": (0.0, 0.1)},
    ),
    (
        "small_wmt_eval",
        functools.partial(recipes.evaluate, "RUN", "wmt_t2t_ende_v003"),
        {
            "path": (None, "RUN"),
            "split": ("test", "validation"),
            "task_feature_lengths": (None, {"inputs": 1024, "targets": 256}),
        },
    ),
]
