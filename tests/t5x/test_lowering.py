"""Recipes lowered to T5X: every recipe, with shapes only, and the values of T5X's gin files."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fiddle as fdl
import numpy as np
import pytest

import mtf.t5x
import recipes
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.builders import schedule
from mtf.cli.convert import command as convert
from mtf.cli.gin import reading
from mtf.cli.gin.reading import Reference
from mtf.cli.gin.recipe import names_of_configurables
from mtf.models.t5 import num_parameters
from mtf.t5x import unsupported
from mtf.training import AdamWConfig
from tests import small
from tests.conversion import writers
from tests.inference import models
from tests.t5x import T5X_MISSING, originals
from tests.t5x.originals import Original

pytestmark = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed (docs/t5x.md)")

NAMES = (listing.name.rpartition(".")[2] for listing in config_lib.list_recipes())
# These need a checkpoint.
RECIPES = [name for name in NAMES if name not in ("finetune", "continue_pretraining")]


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

    from mtf.t5x.engine import state_shapes

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
        ({"period": 300}, "checkpoint.save.period = 300: .* a multiple of the evaluation period"),
        (
            {"optimizer": fdl.Config(AdamWConfig, schedule.constant(0.01))},
            "optimizer = @AdamWConfig: with T5X, mtf supports only AdafactorConfig",
        ),
        ({"model_dir": "s3://bucket/run"}, "model_dir = 's3://bucket/run': .* cannot write"),
    ],
)
def test_what_t5x_cannot_express_is_refused(change: dict[str, Any], reason: str) -> None:
    config = recipes.quickstart()
    ((field, value),) = change.items()
    holders = {
        **dict.fromkeys(("model_dir", "optimizer"), config),
        "fsdp": config.partitioner,
        "skip_nonfinite_updates": config.trainer,
        "relative_attention_num_buckets": config.model.network,
    }
    setattr(holders.get(field, config.checkpoint.save), field, value)
    with pytest.raises(UserError, match=reason):
        mtf.t5x.lower(config)


@pytest.mark.parametrize("form", ["mesh", "scanned", "huggingface"])
def test_starts_of_other_forms_are_refused(form: str, tmp_path: Path) -> None:
    path = tmp_path / form
    if form == "mesh":
        path = writers.write_bundle(path, {"shared/embedding": np.ones((4, 4), np.float32)})
    elif form == "scanned":
        stacked = {"encoder/encoder/mlp/wo/kernel": np.ones((4, 2, 4), np.float32)}
        path = writers.write_t5x(path, stacked)
    else:
        assert convert.main([str(models.write_checkpoint(tmp_path)), str(path), "--to", "hf"]) == 0
    config = recipes.t5_1_1_finetune(checkpoint=str(path))
    with pytest.raises(UserError, match=r"checkpoint\.restore\.path = .*: T5X can start only from"):
        mtf.t5x.lower(config)
    config.checkpoint.restore.path = str(models.write_checkpoint(tmp_path / "t5x"))
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
    assert {refusal.path for refusal in unsupported.REFUSALS["Train"]} <= known
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
    assert lowered.trainer_cls.num_microbatches == 4
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
    "partitioning.standard_logical_axis_rules": "partitioner.logical_axis_rules",
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
# Lowered to functions of mtf, which have other arguments.
NOT_OF_T5X = ("seqio.SentencePieceVocabulary", "seqio.Evaluator")
# What T5X's gin files leave to its defaults, and mtf sets.
OURS = {
    "train_script.train.stats_period": 100,  # T5X: once in an evaluation period
    "train_script.train.inference_evaluator_cls": None,  # as T5X's, without infer_eval
    "train_script.train.get_dataset_fn": "get_dataset",  # the recipe's own loader
    "train_script.train.train_eval_get_dataset_fn": "get_training_eval_datasets",
    "train_script.train.verify_matching_vocabs_fn": None,  # there is one vocabulary
    "utils.RestoreCheckpointConfig.dtype": "float32",  # T5X: that of the checkpoint
}
SCRATCH = {
    "train_script.train.model": (),
    "utils.CheckpointConfig.restore": ("RestoreCheckpointConfig", None),
    "utils.RestoreCheckpointConfig.path": ([], None),
}


def plain(value: Any) -> Any:
    """A value to compare: components and functions by their names."""
    if isinstance(value, Reference):
        return value.configurable.rpartition(".")[2]
    if isinstance(value, fdl.Buildable):
        value = fdl.get_callable(value)
    return value.__name__ if callable(value) else value


def lowered_value(
    lowered: fdl.Config, component: str, argument: str, places: Mapping[str, str] = PLACES
) -> Any:
    value: Any = lowered
    for field in [*places[component].split("."), argument]:
        if value is None:
            return None
        if field:
            value = getattr(value, NAMES.get(field, field))
    return plain(value)


def gin_values(original: Original) -> dict[str, Any]:
    """The bindings of an original run, to compare."""
    spec = importlib.util.find_spec("t5x")
    assert spec is not None and spec.origin is not None
    root = str(Path(spec.origin).parents[1])
    text = [originals.plain_text(original.text)]
    bindings = reading.read(original.files, text, [root], names_of_configurables())

    def resolved(value: Any) -> Any:
        while isinstance(value, reading.Macro):
            macro = bindings.macros.get(value.name)
            value = Reference("", "gin.REQUIRED", False) if macro is None else macro.value
        return value

    return {each.name: plain(resolved(each.value)) for each in bindings.parameters.values()}


@pytest.mark.parametrize("original", originals.TRAIN, ids=lambda original: original.id)
def test_lowered_values_are_those_of_gin(original: Original) -> None:
    bindings = gin_values(original)
    assert len(bindings) > 60
    lowered = mtf.t5x.lower(original.recipe())
    wrong = []
    for name, value in bindings.items():
        component, _, argument = name.rpartition(".")
        if name in DEFAULTS or name == LOGGERS:
            assert value == DEFAULTS.get(name, value), name
            continue
        ours = lowered_value(lowered, component, argument)
        from_scratch = lowered.checkpoint_cfg.restore is None and name in SCRATCH
        absent = component in PLACES and lowered_value(lowered, component, "") is None
        expected = value
        scope = name.partition("/")[0]
        differences = original.differences
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
    assert not [*wrong, *not_bound(lowered, bindings)]


def not_bound(lowered: fdl.Config, bindings: Mapping[str, Any]) -> Iterator[str]:
    """What is lowered, but neither bound by gin nor T5X's default."""
    for component, place in PLACES.items():
        node: Any = lowered
        for field in place.split("."):
            node = getattr(node, field, None) if field else node
        if not isinstance(node, fdl.Buildable) or component in NOT_OF_T5X:
            continue
        for argument, value in node.__arguments__.items():
            name = f"{component}.{argument}"
            default = plain(node.__signature_info__.parameters[argument].default)
            if name not in bindings and plain(value) not in (default, OURS.get(name, default)):
                yield f"{name}: lowered {plain(value)!r}, T5X's default {default!r}"


@pytest.mark.slow
def test_translated_gin_files_have_the_values_of_t5x() -> None:
    from tests.t5x import compare_gin

    assert compare_gin.main([str(Path(importlib.import_module("t5x").__path__[0]).parent)]) == 0


# The same as PLACES, for jobs that open a checkpoint.
OPENED_PLACES = {
    "eval_script.evaluate": "",
    "infer_script.infer": "",
    "utils.DatasetConfig": "dataset_cfg",
    "utils.RestoreCheckpointConfig": "restore_checkpoint_cfg",
    "partitioning.PjitPartitioner": "partitioner",
}
OPENED_DEFAULTS = {
    "seqio.Evaluator.num_examples": None,
    "seqio.Evaluator.use_memory_cache": True,
    "utils.DatasetConfig.module": None,
}


@pytest.mark.parametrize("original", originals.OF_CHECKPOINT, ids=lambda original: original.id)
def test_lowered_evaluation_and_inference_are_those_of_gin(
    original: Original, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    small.run(
        small.arguments(small.write_text(tmp_path), train_steps=1, model_dir=run_dir), tmp_path
    )
    lowered = mtf.t5x.lower(original.recipe(str(run_dir)))
    compared = 0
    for name, value in gin_values(original).items():
        component, _, argument = name.rpartition(".")
        if name in OPENED_DEFAULTS or name == LOGGERS:
            assert value == OPENED_DEFAULTS.get(name, value), name
            continue
        ours = lowered_value(lowered, component, argument, OPENED_PLACES)
        theirs, expected = value, value
        if argument in original.differences:
            if original.differences[argument] is None:
                continue
            theirs, expected = original.differences[argument]
        assert value in (theirs if isinstance(theirs, tuple) else (theirs,)), name
        assert ours == expected, name
        compared += 1
    assert compared > 15
