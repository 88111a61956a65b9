"""Run directories of older versions load, though their classes have moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fiddle as fdl
import optax
import pytest

import recipes
from mtf import config as config_lib
from mtf.config import codegen, serialize
from mtf.data.settings import HubStreamConfig, TextCorporaConfig
from mtf.data.tasks.objectives import BertStyle, IidDenoising
from mtf.data.text.vocabularies import SentencePieceVocabulary
from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES
from mtf.training.settings import AdamWConfig

# The config.json of runs that version 0.1.0 began.
OLD_RUNS = Path(__file__).parent / "old_runs"


@pytest.mark.parametrize("recipe", ["quickstart", "t0pp_xxl", "mt5_lm_adapt"])
def test_an_old_run_of_a_recipe_is_a_new_one(recipe: str) -> None:
    old = config_lib.load_config(OLD_RUNS / f"{recipe}.json")
    new = getattr(recipes, recipe)()
    if recipe == "mt5_lm_adapt":  # 1,000 documents did not fill the 20 batches of an evaluation.
        assert old.data.eval_documents == 1000
        old.data.eval_documents = None
    if recipe == "t0pp_xxl":  # These did not fit a v3-512.
        assert old.model.network.remat_policy == "full"
        old.model.network.remat_policy = "minimal"
        old.partitioner.logical_axis_rules = FULLY_SHARDED_AXIS_RULES
    assert json.loads(config_lib.dump_json(old)) == json.loads(config_lib.dump_json(new))


def _built(name: str) -> Any:
    return fdl.build(config_lib.load_config(OLD_RUNS / f"{name}.json"))


def test_every_component_is_found() -> None:
    corpora = _built("corpora")
    assert isinstance(corpora.data, TextCorporaConfig)
    assert corpora.data.files == {"en": "en.txt"}
    assert corpora.data.objective == BertStyle()
    assert isinstance(corpora.optimizer, AdamWConfig)
    assert corpora.evaluator == InferEvalConfig(metrics=("bleu",))
    stream = _built("stream")
    assert isinstance(stream.data, HubStreamConfig)
    assert stream.data.dataset == "a/b"
    assert stream.data.objective == IidDenoising()
    assert isinstance(stream.data.vocabulary, SentencePieceVocabulary)
    assert _built("rank_files").data == RankFilesConfig(files="mine.jsonl")
    assert _built("infer").decoding.num_beams == 1


def test_functions_of_private_modules_have_the_names_that_users_import() -> None:
    """Earlier versions stored `optax._src.alias`, which optax may move at any time."""
    config = recipes.quickstart()
    schedule = fdl.Config(optax.linear_schedule, 1.0, 0.0, 10)
    config.optimizer = fdl.Config(optax.lion, schedule)
    text = config_lib.dump_json(config)
    assert "_src" not in text
    modules = ("optax", "optax._src.alias"), ("optax", optax.linear_schedule.__module__)
    older = text
    for name, (public, private) in zip(("lion", "linear_schedule"), modules, strict=True):
        stored = f'"module": "{public}",\n{{}}"name": "{name}"'
        indent = text.partition(f'"name": "{name}"')[0].rpartition("\n")[2]
        assert stored.format(indent) in older
        older = older.replace(stored.format(indent), stored.format(indent).replace(public, private))
    assert all(private in older for _, private in modules)
    assert serialize.load_json(older, "config.json") == config
    assert "optimizer = @optax.lion\n" in config_lib.as_flat_text(config)
    code = codegen.as_python(config, "A run.")
    assert "from optax import linear_schedule, lion\n" in code
    assert "_src" not in code


def test_no_old_run_is_left_out() -> None:
    """The names that old configs may hold all lead somewhere."""
    for file in OLD_RUNS.iterdir():
        assert isinstance(config_lib.load_config(file), fdl.Config)
