"""Recipes lowered to T5X: every recipe, with shapes only, and the values of T5X's gin files."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import fiddle as fdl
import numpy as np
import pytest

import mtf.t5x
import recipes
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.cli.convert import command as convert
from mtf.models.t5 import num_parameters
from mtf.t5x import unsupported
from tests.conversion import writers
from tests.gin import comparing
from tests.inference import models
from tests.t5x import T5X_MISSING, originals
from tests.t5x.originals import Original

pytestmark = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed (docs/t5x.md)")

SPEC = importlib.util.find_spec("t5x")
CHECKOUT = Path(next(iter((SPEC and SPEC.submodule_search_locations) or ["/none"]))).parent
NAMES = (listing.name.rpartition(".")[2] for listing in config_lib.list_recipes())
# These have required arguments.
_OTHERS = ("finetune", "continue_pretraining", "cache", "convert")
RECIPES = [name for name in NAMES if name not in _OTHERS]


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
    ("override", "reason"),
    [
        ("partitioner.fsdp=2", "partitioner.fsdp = 2: T5X's mesh has no axis fsdp"),
        ("trainer.skip_nonfinite_updates=True", "trainer.skip_nonfinite_updates = True: "),
        ("model.network.relative_attention_num_buckets=16", "always has 32 buckets"),
        ("checkpoint.save.dtype=bfloat16", "checkpoint.save.dtype = 'bfloat16': "),
        ("checkpoint.save.period=300", "period = 300: .* a multiple of the evaluation period"),
        (
            "optimizer=@mtf.training.AdamWConfig("
            "learning_rate=@mtf.builders.schedule.constant(learning_rate=0.01))",
            "optimizer = @AdamWConfig: with T5X, mtf supports only AdafactorConfig",
        ),
        ("model_dir=s3://bucket/run", "model_dir = 's3://bucket/run': .* cannot write"),
    ],
)
def test_what_t5x_cannot_express_is_refused(override: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        mtf.t5x.lower(config_lib.apply_overrides(recipes.pretrain_text(), [override]))


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
    config = recipes.pretrain_text()
    config.partitioner.fsdp = 2
    config.trainer.skip_nonfinite_updates = True
    config.checkpoint.save.dtype = "bfloat16"
    with pytest.raises(UserError) as error:
        mtf.t5x.lower(config)
    assert len(str(error.value).splitlines()) == 4


def test_every_refused_path_exists() -> None:
    known = {
        re.sub(r"\[\d+\]", "", path)
        for name in ("pretrain_text", "t5_1_1_finetune", "t0pp_xxl")
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
    config = recipes.mt0_xxl()
    config.model.loss_normalizing_factor = factor
    lowered = mtf.t5x.lower(config)
    assert lowered.model.loss_normalizing_factor == factor
    assert lowered.trainer_cls.num_microbatches == 4
    assert fdl.get_callable(lowered.trainer_cls).__module__ == "mtf.t5x.microbatches"
    config.trainer.num_microbatches = 1
    assert fdl.get_callable(mtf.t5x.lower(config).trainer_cls).__module__ == "t5x.trainer"


def undocumented(original: Original, config: fdl.Config, job: str) -> dict[str, Any]:
    """Path → T5X's value and ours, for differences that neither docs/t5x.md nor the run has."""
    from tests.t5x import compare_gin

    text = originals.plain_text(original.text)
    unset = ("MODEL_DIR = None", "MODEL = None" * (job != "train"))
    run = compare_gin.Run(original.files, (*unset, *text.splitlines()), job)
    return compared(run, compare_gin.theirs(run, CHECKOUT), config, original.differences)


def compared(
    run: Any, given: fdl.Config, config: fdl.Config, documented: Mapping[str, Any]
) -> dict[str, Any]:
    """Path → T5X's value and ours, for differences that are not documented."""
    from tests.t5x import compare_gin

    defaults = compare_gin.defaults_of([given])
    theirs = comparing.expanded(compare_gin.values_of(run, given), defaults)
    assert len(theirs) > 50
    found = comparing.differences(theirs, comparing.ours(config, defaults))
    known = {path: documented.get(path.rpartition(".")[2], ()) for path in found}
    return {
        path: pair
        for path, pair in found.items()
        if known[path] is not None and pair != [*known[path]]
    }


@pytest.mark.parametrize("original", originals.TRAIN, ids=lambda original: original.id)
def test_lowered_values_are_those_of_gin(original: Original) -> None:
    assert undocumented(original, original.recipe(), "train") == {}


@pytest.mark.parametrize("original", originals.OF_CHECKPOINT, ids=lambda original: original.id)
def test_lowered_evaluation_and_inference_are_those_of_gin(original: Original) -> None:
    job = "infer" if original.id == "infer" else "evaluate"
    assert undocumented(original, original.recipe("RUN"), job) == {}


@pytest.mark.parametrize(("name", "of_ours", "documented"), originals.FIDDLE)
def test_lowered_values_are_those_of_fiddle_configs(
    name: str, of_ours: Callable[[], fdl.Config], documented: Mapping[str, Any]
) -> None:
    from tests.t5x import compare_gin

    with mock.patch.dict(sys.modules, compare_gin.TASKS):
        module = importlib.import_module("t5x.fiddle_configs.examples.t5_1_1")
    run = compare_gin.Run((), (), "evaluate" if name.endswith("eval") else "train")
    compare_gin.gin.clear_config()
    assert compared(run, getattr(module, name)(), of_ours(), documented) == {}


@pytest.mark.slow
def test_translated_gin_files_have_the_values_of_t5x() -> None:
    from tests.t5x import compare_gin

    assert compare_gin.main([str(CHECKOUT)]) == 0
