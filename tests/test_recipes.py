"""Every recipe: builds, type-checks, goes through JSON and back, and is described."""

from __future__ import annotations

import itertools
import json
import re

import fiddle as fdl
import pytest

import recipes
from mtf import builders
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.jobs import Train
from tests.recipes import regenerate
from tests.small import python
from tests.test_structure import HEAVY, ROOT

NAMES = [f"recipes.{name}" for name in regenerate.NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_sound(name: str) -> None:
    config = config_lib.resolve(name)
    assert config_lib.find_problems(config) == []
    job = config_lib.build(config)
    again = config_lib.load_json(config_lib.dump_json(config), name)
    assert config_lib.build(again) == job
    assert callable(job.run)
    if isinstance(job, Train):
        override = config_lib.Override("set", "trainer.profile=10:12")
        profiled = config_lib.build(config_lib.apply_overrides(config, [override]))
        assert profiled.trainer.profile == "10:12"


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_listed(name: str) -> None:
    listed = {listing.name: listing.summary for listing in config_lib.list_recipes()}
    assert listed[name]


def test_every_recipe_is_shown_within_a_second_and_without_array_libraries() -> None:
    code = """
import contextlib, io, json, sys, time
from mtf.cli.run import main
spent, shown = [time.process_time()], []
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([name, "--print", "all"]) == 0
    spent.append(time.process_time())
    shown.append(len(out.getvalue().splitlines()))
loaded = sorted({module.partition(".")[0] for module in sys.modules})
print(json.dumps({"spent": spent, "shown": shown, "loaded": loaded}))
"""
    found = json.loads(python("-c", code, *NAMES).stdout)
    assert min(found["shown"]) > 20
    assert not set(found["loaded"]) & HEAVY
    # The first has paid for the imports.
    _, first, *_ = spent = found["spent"]
    assert first < 1.0
    assert max(after - before for before, after in itertools.pairwise(spent[1:])) < 0.5


# `python -m mtf.run RECIPE` or `python -m mtf.run "RECIPE(…)"`, also over two lines.
COMMAND = re.compile(r'python -m mtf\.run (?:"([^"]+)"|(recipes\.\w+))(?: --apply (\w+))?')


def commands(text: str) -> list[tuple[str, str]]:
    """The recipe and fiddler of every command in a text."""
    found = COMMAND.findall(re.sub(r"\s+", " ", text))
    return [(quoted or bare, fiddler) for quoted, bare, fiddler in found]


def test_every_command_that_is_documented_makes_a_config() -> None:
    for name in regenerate.RECIPES:
        docstring = getattr(recipes, name).__doc__
        assert any(f"recipes.{name}" in recipe for recipe, _ in commands(docstring)), name
    page = (ROOT / "docs" / "recipes.md").read_text()
    told = [getattr(recipes, name).__doc__ for name in regenerate.RECIPES]
    for recipe, fiddler in [pair for text in (*told, page) for pair in commands(text)]:
        if config_lib.recipe_name(recipe) not in regenerate.NAMES:
            continue  # It reads a checkpoint and data.
        overrides = [config_lib.Override("apply", fiddler)] if fiddler else []
        config_lib.build(config_lib.apply_overrides(config_lib.resolve(recipe), overrides))


def test_released_checkpoints_are_known_by_name() -> None:
    restore = builders.checkpoint.start("mt5_lm_adapted/xl")
    assert restore.path == "gs://t5-data/pretrained_models/t5x/mt5_lm_adapted/xl/checkpoint_1100000"
    with pytest.raises(UserError, match="Did you mean t5_1_1_lm100k_xl"):
        builders.checkpoint.start("t5_1_1_lm100_xl")


def test_mc4_has_the_mt5_papers_languages() -> None:
    subsets = builders.data.mc4_subsets()
    # 101 languages, and six of them in Latin letters as well; Table 6 adds up to 100%.
    assert len(subsets) == 107 and "en" not in subsets
    assert sum(name.endswith("-Latn") for name in subsets) == 6
    assert sum(subsets.values()) == pytest.approx(100, abs=0.1)


def test_the_number_of_parameters_is_the_originals() -> None:
    def parameters(name: str) -> str:
        job = fdl.build(config_lib.resolve(f"recipes.{name}"))
        return str(job.describe().rows["parameters"])

    assert parameters("t0_3b") == "2,849,757,184"
    assert parameters("t5_1_1_xxl_c4") == "11,135,332,352"
    assert parameters("mt0_xxl") == "12,921,057,280"
    assert parameters("ro_mt5_large") == "1,229,581,312"
    # T5 1.1 base has 247,577,856 with 32,128 rows in each of two matrices; here are 64,000.
    assert parameters("ro_t5_base") == f"{247_577_856 + 2 * 768 * (64_000 - 32_128):,}"
    assert parameters("t5_1_1_small_c4") == "76,961,152"
