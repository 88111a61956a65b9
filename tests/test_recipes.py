"""Every recipe: builds, type-checks, goes through JSON and back, and is described."""

from __future__ import annotations

import fiddle as fdl
import pytest

import recipes
from mtf import config as config_lib

NAMES = [f"recipes.{name}" for name in recipes.__all__]


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_sound(name: str) -> None:
    config = config_lib.resolve(name)
    config_lib.check(config)
    job = config_lib.build(config)
    again = config_lib.load_json(config_lib.dump_json(config), name)
    assert config_lib.build(again) == job
    assert callable(job.run)


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_listed_and_documented(name: str) -> None:
    listed = {listing.name: listing.summary for listing in config_lib.list_recipes()}
    assert listed[name]
    docstring = getattr(recipes, name.removeprefix("recipes.")).__doc__
    for word in ("Command:", "Hardware:", "Expect:"):
        assert word in docstring


def test_the_quickstart_is_a_t5_1_1_of_a_few_million_parameters_on_bytes() -> None:
    job = fdl.build(recipes.quickstart())
    network = job.model.network
    assert network.mlp_activations == ("gelu", "linear") and not network.logits_via_embedding
    assert network.vocab_size == job.data.vocabulary.vocab_size == 384
    parameters = int(job.describe().split("parameters")[1].split()[0].replace(",", ""))
    assert 2_000_000 < parameters < 10_000_000


def test_dry_run_of_the_largest_t5_1_1_allocates_nothing() -> None:
    from mtf import builders

    config = recipes.quickstart()
    config.model = builders.model.t5_1_1("xxl")
    text = fdl.build(config).describe()
    assert "11,135,332,352" in text
    # Four bytes a parameter.
    assert "44,541,329,408 bytes" in text
