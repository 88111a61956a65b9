"""Recipes lowered to T5X: every recipe, with shapes only, and the values of T5X's gin files."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

import mtf.t5x
import recipes
from mtf import config as config_lib
from mtf.errors import UserError
from mtf.models.t5 import num_parameters
from mtf.t5x import unsupported
from tests.t5x import T5X_MISSING

pytestmark = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed (docs/t5x.md)")

RECIPES = [listing.name.rpartition(".")[2] for listing in config_lib.list_recipes()]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_lowers_and_has_our_parameters(name: str) -> None:
    config = getattr(recipes, name)()
    if fdl.get_callable(config).__name__ != "Train":
        with pytest.raises(UserError, match="checkpoint is not set"):
            mtf.t5x.lower(config)
        return
    # Every layer has the same shapes, and tracing all 48 takes long.
    config.model.network.num_encoder_layers = config.model.network.num_decoder_layers = 2
    import jax

    from mtf.t5x.run import state_shapes

    lowered = mtf.t5x.lower(config)
    assert fdl.get_callable(lowered).__module__ == "t5x.train"
    state = state_shapes(lowered)
    network = fdl.build(config.model.network)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) == num_parameters(network)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fsdp": 2}, "partitioner.fsdp = 2: T5X's mesh has no axis fsdp"),
        ({"skip_nonfinite_updates": True}, "trainer.skip_nonfinite_updates = True: "),
        ({"relative_attention_num_buckets": 16}, "always has 32 buckets"),
        ({"dtype": "bfloat16"}, "checkpoint.save.dtype = 'bfloat16': "),
        ({"period": 300}, "checkpoint.save.period = 300: .* multiple of the other"),
    ],
)
def test_what_t5x_cannot_express_is_refused(change: dict[str, Any], reason: str) -> None:
    config = recipes.quickstart()
    ((field, value),) = change.items()
    holders = {
        "fsdp": config.partitioner,
        "skip_nonfinite_updates": config.trainer,
        "relative_attention_num_buckets": config.model.network,
    }
    setattr(holders.get(field, config.checkpoint.save), field, value)
    with pytest.raises(UserError, match=reason):
        mtf.t5x.lower(config)


def test_all_refusals_are_in_one_message() -> None:
    config = recipes.quickstart()
    config.partitioner.fsdp = 2
    config.trainer.skip_nonfinite_updates = True
    config.checkpoint.save.dtype = "bfloat16"
    with pytest.raises(UserError) as error:
        mtf.t5x.lower(config)
    assert len(str(error.value).splitlines()) == 4


def test_every_refused_path_exists() -> None:
    known = {
        re.sub(r"\[\d+\]", "", path)
        for name in ("quickstart", "t5_1_1_finetune", "t0pp_xxl")
        for path in config_lib.tree.known_paths(config_lib.complete(getattr(recipes, name)()))
    }
    assert {refusal.path for refusal in unsupported.TRAIN} <= known
    assert {*unsupported.UNUSED["Train"]} <= known


def test_the_loss_of_t0_is_divided_by_the_tokens_of_the_whole_batch() -> None:
    # T5X normalizes each of the 8 microbatches by its own 128 · 256 tokens.
    lowered = mtf.t5x.lower(recipes.t0pp_xxl())
    assert lowered.trainer_cls.num_microbatches == 8
    assert lowered.model.loss_normalizing_factor == 1024 * 256
    assert fdl.get_callable(lowered.trainer_cls).__module__ == "t5x.trainer"


@pytest.mark.parametrize("factor", ["AVERAGE_PER_SEQUENCE", "NUM_REAL_TARGET_TOKENS"])
def test_a_factor_of_the_tokens_is_that_of_the_whole_batch(factor: str) -> None:
    # test_live_parity.py compares the losses.
    config = recipes.mt0_xxl_xmtf()
    config.model.loss_normalizing_factor = factor
    lowered = mtf.t5x.lower(config)
    assert lowered.model.loss_normalizing_factor == factor
    assert lowered.trainer_cls.num_microbatches == 16
    assert fdl.get_callable(lowered.trainer_cls).__module__ == "mtf.t5x.microbatches"
    config.trainer.num_microbatches = 1
    assert fdl.get_callable(mtf.t5x.lower(config).trainer_cls).__module__ == "t5x.trainer"


# T5X's name of a component in gin → its path in the lowered config.
PLACES = {
    "train_script.train": "",
    "models.EncoderDecoderModel": "model",
    "network.Transformer": "model.module",
    "network.T5Config": "model.module.config",
    "adafactor.Adafactor": "model.optimizer_def",
    "seqio.SentencePieceVocabulary": "model.input_vocabulary.vocabulary",
    "train/utils.DatasetConfig": "train_dataset_cfg",
    "train_eval/utils.DatasetConfig": "train_eval_dataset_cfg",
    "infer_eval/utils.DatasetConfig": "infer_eval_dataset_cfg",
    "utils.CheckpointConfig": "checkpoint_cfg",
    "utils.SaveCheckpointConfig": "checkpoint_cfg.save",
    "utils.RestoreCheckpointConfig": "checkpoint_cfg.restore",
    "partitioning.PjitPartitioner": "partitioner",
    "trainer.Trainer": "trainer_cls",
    "utils.create_learning_rate_scheduler": "trainer_cls.learning_rate_fn",
    "seqio.Evaluator": "infer_eval_dataset_cfg.mixture_or_task_name.evaluator",
}
NAMES = {"sentencepiece_model_file": "path"}
# What differs in all recipes: gin's value → the lowered one, and why (see docs/t5x.md).
_VOCABULARY = "seqio_vocabulary"
DIFFERENCES: dict[str, tuple[Any, Any]] = {
    # mtf's seeds are fixed, and the position in the data is saved.
    "train_script.train.random_seed": (None, 0),
    "train/utils.DatasetConfig.seed": (None, 0),
    "train_eval/utils.DatasetConfig.seed": (42, 0),
    "infer_eval/utils.DatasetConfig.seed": (42, 0),
    "utils.SaveCheckpointConfig.save_dataset": (False, True),
    # The config is stored by mtf, in the directory of the command line.
    "train_script.train.summarize_config_fn": ("summarize_gin_config", "summarize_nothing"),
    "train_script.train.model_dir": ("REQUIRED", None),
    # The same vocabulary, by a function that downloads its file once.
    "models.EncoderDecoderModel.input_vocabulary": ("SentencePieceVocabulary", _VOCABULARY),
    "models.EncoderDecoderModel.output_vocabulary": ("SentencePieceVocabulary", _VOCABULARY),
    "infer_eval/utils.DatasetConfig.task_feature_lengths": (
        None,
        {"inputs": 256, "targets": 256},
    ),
}
# Set to T5X's default by gin, and left at it by mtf.
DEFAULTS = {
    "train_script.train.relative_steps": None,
    "train_script.train.use_hardware_rng": False,
    "train/utils.DatasetConfig.module": None,
    "train_eval/utils.DatasetConfig.module": None,
    "infer_eval/utils.DatasetConfig.module": None,
    "seqio.Evaluator.use_memory_cache": True,
    "seqio.JSONLogger.write_n_results": None,
}
LOGGERS = "seqio.Evaluator.logger_cls"
SCRATCH = {
    "train_script.train.model": (),
    "utils.CheckpointConfig.restore": ("RestoreCheckpointConfig", None),
    "utils.RestoreCheckpointConfig.path": ([], None),
}

T5 = "t5x/examples/t5"
RUNS = "t5x/configs/runs"
SMALL = f"{T5}/t5_1_1/examples"
NO_CACHE = "USE_CACHED_TASKS = False\n"
C4 = "allenai/c4"
_RO = "rlm_span_corruption_stream", "dumitrescustefan/rlm"
ORIGINALS: list[tuple[Any, ...]] = [
    # recipe, gin files, bindings of the command, what differs here: gin's value → ours.
    (
        functools.partial(recipes.t5_1_1_small_c4, train_steps=10_000),
        [f"{SMALL}/small_c4_pretrain.gin"],
        NO_CACHE,
        {"mixture_or_task_name": ("c4_v220_span_corruption", C4)},
    ),
    (
        recipes.t5_1_1_base_c4,
        [f"{SMALL}/base_c4_pretrain.gin"],
        NO_CACHE,
        {"mixture_or_task_name": ("c4_v220_span_corruption", C4)},
    ),
    (
        functools.partial(recipes.t5_1_1_finetune, dropout_rate=0.0),
        [f"{SMALL}/small_wmt_finetune.gin"],
        "",
        {
            "train/mixture_or_task_name": ("wmt_t2t_ende_v003", "text_files"),
            "train_eval/mixture_or_task_name": ("wmt_t2t_ende_v003", "text_files"),
            # A task with the recipe's examples and metrics.
            "infer_eval/mixture_or_task_name": ("wmt_t2t_ende_v003", "register_held_out"),
        },
    ),
    (
        recipes.mt0_xxl,
        [f"{T5}/mt5/xxl.gin", f"{RUNS}/finetune.gin"],
        """
        MIXTURE_OR_TASK_NAME = "mt5_d4_gpt_sglue_train"
        TASK_FEATURE_LENGTHS = {"inputs": 256, "targets": 256}
        TRAIN_STEPS = 1_125_000
        INITIAL_CHECKPOINT_PATH = "gs://t5-data/pretrained_models/t5x/mt5_xxl/checkpoint_1000000"
        USE_CACHED_TASKS = False
        train_script.train.train_eval_dataset_cfg = None
        train_script.train.infer_eval_dataset_cfg = None
        train_script.train.inference_evaluator_cls = None
        train_script.train.eval_period = 0
        partitioning.PjitPartitioner.num_partitions = 4
        """,
        {},
    ),
    (
        recipes.ro_mt5_base,
        [f"{T5}/mt5/base.gin", f"{RUNS}/pretrain.gin"],
        """
        MIXTURE_OR_TASK_NAME = "rlm_span_corruption_stream"
        TASK_FEATURE_LENGTHS = {"inputs": 512, "targets": 256}
        TRAIN_STEPS = 2_000_000
        USE_CACHED_TASKS = False
        DROPOUT_RATE = 0.0
        BATCH_SIZE = 128
        partitioning.PjitPartitioner.num_partitions = 2
        utils.SaveCheckpointConfig.period = 25000
        utils.SaveCheckpointConfig.keep = 3
        utils.create_learning_rate_scheduler.base_learning_rate = 0.4
        utils.RestoreCheckpointConfig.path = \\
            "gs://t5-data/pretrained_models/t5x/mt5_base/checkpoint_1000000"
        """,
        {"mixture_or_task_name": _RO},
    ),
    (
        recipes.ro_t5_large,
        [f"{T5}/t5_1_1/large.gin", f"{RUNS}/pretrain.gin"],
        """
        MIXTURE_OR_TASK_NAME = "rlm_span_corruption_stream"
        TASK_FEATURE_LENGTHS = {"inputs": 512, "targets": 512}
        TRAIN_STEPS = 2_000_000
        USE_CACHED_TASKS = False
        DROPOUT_RATE = 0.0
        network.T5Config.vocab_size = 64000
        partitioning.PjitPartitioner.num_partitions = 4
        utils.SaveCheckpointConfig.period = 10000
        utils.SaveCheckpointConfig.keep = 5
        """,
        {"mixture_or_task_name": _RO, "sentencepiece_model_file": None},
    ),
    (
        # T0's own command is of Mesh TensorFlow; these are the same values in T5X's words.
        recipes.t0pp_xxl,
        [f"{T5}/t5_1_1/xxl.gin", f"{RUNS}/finetune.gin"],
        """
        MIXTURE_OR_TASK_NAME = "t0++_train"
        TASK_FEATURE_LENGTHS = {"inputs": 1024, "targets": 256}
        TRAIN_STEPS = 1_112_200
        BATCH_SIZE = 1024
        LOSS_NORMALIZING_FACTOR = 262144
        USE_CACHED_TASKS = False
        INITIAL_CHECKPOINT_PATH = \\
            "gs://t5-data/pretrained_models/t5x/t5_1_1_lm100k_xxl/checkpoint_1100000"
        train_script.train.train_eval_dataset_cfg = None
        train_script.train.infer_eval_dataset_cfg = None
        train_script.train.inference_evaluator_cls = None
        train_script.train.eval_period = 0
        trainer.Trainer.num_microbatches = 8
        utils.SaveCheckpointConfig.period = 1000
        partitioning.PjitPartitioner.num_partitions = 8
        """,
        {},
    ),
]


def plain(value: Any) -> Any:
    """A value to compare: components and functions by their names."""
    from tests.t5x.gin_bindings import Reference

    if isinstance(value, Reference):
        return value.name.rpartition(".")[2].rpartition("/")[2]
    if isinstance(value, fdl.Buildable):
        value = fdl.get_callable(value)
    return value.__name__ if callable(value) else value


def lowered_value(lowered: fdl.Config, component: str, argument: str) -> Any:
    value: Any = lowered
    for field in [*PLACES[component].split("."), argument]:
        if value is None:
            return None
        if field:
            value = getattr(value, NAMES.get(field, field))
    return plain(value)


@pytest.mark.parametrize(
    ("recipe", "files", "text", "differences"),
    ORIGINALS,
    ids=[files[0] for _, files, *_ in ORIGINALS],
)
def test_lowered_values_are_those_of_gin(
    recipe: Callable[[], fdl.Config], files: list[str], text: str, differences: dict[str, Any]
) -> None:
    import t5x

    from tests.t5x import gin_bindings

    root = Path(t5x.__file__).parents[1]
    text = "\n".join(line.strip() for line in text.splitlines()).replace("\\\n", "")
    bindings = gin_bindings.read(root, files, text)
    assert len(bindings) > 60
    lowered = mtf.t5x.lower(recipe())
    wrong = []
    for name, value in bindings.items():
        component, _, argument = name.rpartition(".")
        value = plain(value)
        if name in DEFAULTS or name == LOGGERS:
            assert value == DEFAULTS.get(name, value), name
            continue
        ours = lowered_value(lowered, component, argument)
        from_scratch = lowered.checkpoint_cfg.restore is None and name in SCRATCH
        absent = component in PLACES and lowered_value(lowered, component, "") is None
        expected = value
        scope = name.partition("/")[0]
        own = next((key for key in (f"{scope}/{argument}", argument) if key in differences), None)
        if own is not None:
            if differences[own] is None:
                continue
            assert value in (differences[own][0], None), name
            expected = differences[own][1]
        elif name in DIFFERENCES:
            assert value == DIFFERENCES[name][0], name
            expected = DIFFERENCES[name][1]
        if from_scratch and SCRATCH[name] and value == SCRATCH[name][0]:
            expected = SCRATCH[name][1]
        if ours != expected and not (absent and ours is None):
            wrong.append(f"{name}: gin {value!r}, lowered {ours!r}")
    assert not wrong
