"""The runs that the training recipes reproduce, in the words of T5X's gin files.

Values are those of the papers, pages and scripts that the recipes name; T0's command and mT5's LM
adaptation were of Mesh TensorFlow, and are written here with T5X's names.
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
      differences: argument, or scope/argument → gin's value and the lowered one; None: any.
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
EXAMPLES = f"{T5}/t5_1_1/examples"
PRETRAIN, FINETUNE = "t5x/configs/runs/pretrain.gin", "t5x/configs/runs/finetune.gin"
EVAL, INFER = "t5x/configs/runs/eval.gin", "t5x/configs/runs/infer.gin"
RELEASED = "gs://t5-data/pretrained_models/t5x"

_C4 = {"mixture_or_task_name": ("c4_v220_span_corruption", "allenai/c4")}
_C4_TEXT = """
    MIXTURE_OR_TASK_NAME = "c4_v220_span_corruption"
    TASK_FEATURE_LENGTHS = {"inputs": 512, "targets": 114}
    TRAIN_STEPS = 100_000
    DROPOUT_RATE = 0.0
    BATCH_SIZE = 256
    USE_CACHED_TASKS = False
"""
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


def _c4() -> list[Original]:
    found = [
        Original(
            "t5_1_1_small_c4",
            functools.partial(recipes.t5_1_1_small_c4, train_steps=10_000),
            (f"{EXAMPLES}/small_c4_pretrain.gin",),
            "USE_CACHED_TASKS = False",
            _C4,
        ),
        Original(
            "t5_1_1_base_c4",
            recipes.t5_1_1_base_c4,
            (f"{EXAMPLES}/base_c4_pretrain.gin",),
            "USE_CACHED_TASKS = False",
            _C4,
        ),
    ]
    for size in ("large", "xl", "xxl"):
        text = _C4_TEXT + ("" if size == "large" else _EIGHT_PARTITIONS)
        name = f"t5_1_1_{size}_c4"
        files = (f"{T5}/t5_1_1/{size}.gin", PRETRAIN)
        found.append(Original(name, getattr(recipes, name), files, text, _C4))
    return found


# A task with the recipe's examples and metrics.
_HELD_OUT = "register_held_out"


def _finetuning() -> list[Original]:
    tasks = {
        "train": "text_files",
        "train_eval": "text_files",
        "infer_eval": _HELD_OUT,
    }
    text = f"""
        MIXTURE_OR_TASK_NAME = "t0_train"
        TASK_FEATURE_LENGTHS = {{"inputs": 512, "targets": 128}}
        TRAIN_STEPS = 1_050_000
        USE_CACHED_TASKS = False
        LOSS_NORMALIZING_FACTOR = 233472
        INITIAL_CHECKPOINT_PATH = "{RELEASED}/t5_1_1_xxl/checkpoint_1000000"
    """
    recipe = functools.partial(
        recipes.t5_1_1_finetune,
        **{"mixture": "t0_train", "size": "xxl", "inputs_length": 512, "targets_length": 128},
        finetuning_steps=50_000,
    )
    return [
        Original(
            "t5_1_1_finetune",
            functools.partial(recipes.t5_1_1_finetune, dropout_rate=0.0),
            (f"{EXAMPLES}/small_wmt_finetune.gin",),
            "",
            {
                f"{scope}/mixture_or_task_name": ("wmt_t2t_ende_v003", name)
                for scope, name in tasks.items()
            },
        ),
        Original(
            "t5_1_1_finetune:xxl",
            recipe,
            (f"{T5}/t5_1_1/xxl.gin", FINETUNE),
            text + _EIGHT_PARTITIONS,
            {
                "infer_eval/mixture_or_task_name": ("t0_train", _HELD_OUT),
                "infer_eval/task_feature_lengths": (None, {"inputs": 512, "targets": 128}),
            },
        ),
    ]


def _t0() -> list[Original]:
    mixtures = {
        "t0_3b": "t0_train",
        "t0_xxl": "t0_train",
        "t0p_xxl": "t0+_train",
        "t0pp_xxl": "t0++_train",
        "t0_single_prompt_xxl": "t0_train_one_og_prompt",
        "t0_original_task_only_xxl": "t0_train_all_og_prompts",
    }
    found = []
    for name, mixture in mixtures.items():
        size = "xl" if name == "t0_3b" else "xxl"
        # 1,048,576 tokens in a batch; 64 replicas of 16 sequences, 2,048 tokens at a time.
        text = f"""
            MIXTURE_OR_TASK_NAME = "{mixture}"
            TASK_FEATURE_LENGTHS = {{"inputs": 1024, "targets": 256}}
            TRAIN_STEPS = 1_112_200
            BATCH_SIZE = 1024
            LOSS_NORMALIZING_FACTOR = 262144
            USE_CACHED_TASKS = False
            INITIAL_CHECKPOINT_PATH = "{RELEASED}/t5_1_1_lm100k_{size}/checkpoint_1100000"
            trainer.Trainer.num_microbatches = 8
            utils.SaveCheckpointConfig.period = 1000
        """
        text += _NO_EVALUATION + _EIGHT_PARTITIONS + _TWO_DIMENSIONAL_RULES
        files = (f"{T5}/t5_1_1/{size}.gin", FINETUNE)
        found.append(Original(name, getattr(recipes, name), files, text, {}))
    return found


def _mt0() -> list[Original]:
    found = []
    for size in ("small", "base", "large", "xl", "xxl"):
        text = f"""
            MIXTURE_OR_TASK_NAME = "mt5_d4_gpt_sglue_train"
            TASK_FEATURE_LENGTHS = {{"inputs": 256, "targets": 256}}
            TRAIN_STEPS = 1_125_000
            INITIAL_CHECKPOINT_PATH = "{RELEASED}/mt5_{size}/checkpoint_1000000"
            USE_CACHED_TASKS = False
        """
        text += _NO_EVALUATION + (_FULLY_SHARDED if size in ("xl", "xxl") else "")
        files = (f"{T5}/mt5/{size}.gin", FINETUNE)
        found.append(Original(f"mt0_{size}", getattr(recipes, f"mt0_{size}"), files, text, {}))
    released = f"""
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
    adapted = f"""
        MIXTURE_OR_TASK_NAME = "mc4_prefix_lm"
        TASK_FEATURE_LENGTHS = {{"inputs": 512, "targets": 256}}
        TRAIN_STEPS = 1_100_000
        BATCH_SIZE = 2048
        DROPOUT_RATE = 0.0
        USE_CACHED_TASKS = False
        partitioning.PjitPartitioner.num_partitions = 4
        utils.RestoreCheckpointConfig.path = "{RELEASED}/mt5_xxl/checkpoint_1000000"
        utils.RestoreCheckpointConfig.mode = "specific"
    """
    return [
        *found,
        Original(
            "mt0_xxl_xmtf",
            recipes.mt0_xxl_xmtf,
            (f"{T5}/mt5/xxl.gin", FINETUNE),
            released + _FULLY_SHARDED,
            {"mixture_or_task_name": ("xP3", "text_files")},
        ),
        Original(
            "mt5_lm_adapt",
            recipes.mt5_lm_adapt,
            (f"{T5}/mt5/xxl.gin", PRETRAIN),
            adapted,
            {"mixture_or_task_name": ("mc4_prefix_lm", "allenai/c4")},
        ),
    ]


def _romanian() -> list[Original]:
    found = []
    # Targets, steps, base learning rate, partitions, period, keep, embedding rows.
    runs: dict[str, tuple[int, int, float, int, int, int, int]] = {
        "ro_t5_base": (256, 2_000_000, 1.0, 2, 10_000, 5, 64_000),
        "ro_t5_large": (512, 2_000_000, 1.0, 4, 10_000, 5, 64_000),
        "ro_mt5_base": (256, 2_000_000, 0.4, 2, 25_000, 3, 250_112),
        "ro_mt5_large": (512, 1_500_000, 0.5, 2, 10_000, 3, 250_112),
    }
    for name, (targets, steps, rate, partitions, period, keep, rows) in runs.items():
        _, family, size = name.split("_")
        text = f"""
            MIXTURE_OR_TASK_NAME = "rlm_span_corruption_stream"
            TASK_FEATURE_LENGTHS = {{"inputs": 512, "targets": {targets}}}
            TRAIN_STEPS = {steps}
            USE_CACHED_TASKS = False
            DROPOUT_RATE = 0.0
            BATCH_SIZE = 128
            network.T5Config.vocab_size = {rows}
            partitioning.PjitPartitioner.num_partitions = {partitions}
            utils.SaveCheckpointConfig.period = {period}
            utils.SaveCheckpointConfig.keep = {keep}
            utils.create_learning_rate_scheduler.base_learning_rate = {rate}
        """
        differences: dict[str, Any] = {
            "mixture_or_task_name": ("rlm_span_corruption_stream", "dumitrescustefan/rlm")
        }
        if family == "mt5":
            start = f"{RELEASED}/mt5_{size}/checkpoint_1000000"
            text += f'utils.RestoreCheckpointConfig.path = "{start}"\n'
            text += "utils.RestoreCheckpointConfig.mode = 'specific'\n"
        else:  # The Romanian vocabulary's file is not public.
            differences["sentencepiece_model_file"] = None
        directory = "mt5" if family == "mt5" else "t5_1_1"
        files = (f"{T5}/{directory}/{size}.gin", PRETRAIN)
        found.append(Original(name, getattr(recipes, name), files, text, differences))
    return found


_RTE = "super_glue_rte_GPT_3_style"
# (gin's value, the lowered one)
_OPENED = {
    # Unshuffled examples need no seed.
    "seed": ((0, 42), 0),
    # Those of the checkpoint, by a function that registers the recipe's examples with SeqIO.
    "model": None,
    "path": None,
    "output_dir": None,
}


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
    registered = {"mixture_or_task_name": ("t0_eval_score_eval", "register_tasks")}
    return [
        Original("evaluate", recipes.evaluate, (EVAL,), evaluated, {**_OPENED, **registered}),
        Original("t0_eval", recipes.t0_eval, (EVAL,), evaluated + of_t0, {**_OPENED, **registered}),
        Original(
            "infer",
            functools.partial(recipes.infer, mixture_or_task_name=_RTE),
            (INFER,),
            inferred,
            {
                **_OPENED,
                "mixture_or_task_name": (_RTE, "register_sources"),
                # mtf infers in the dtype of the job, and saves its place after each 32 batches.
                "dtype": ("bfloat16", "float32"),
                "checkpoint_period": (100, 32),
            },
        ),
    ]


# The recipes take the path of a checkpoint.
OF_CHECKPOINT = _of_checkpoint()
TRAIN = [*_c4(), *_finetuning(), *_t0(), *_mt0(), *_romanian()]
