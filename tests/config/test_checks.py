"""Whole configs: types, required values, what components say themselves; text, code, JSON, diff."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from mtf import config as config_lib
from mtf.base.errors import UserError
from tests.config import example

RECIPES = [example.small, example.with_list, example.plain, lambda: example.small(emb_dim=128)]


def test_missing_values_are_listed_together() -> None:
    with pytest.raises(UserError) as caught:
        config_lib.build(example.unfinished())
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("Missing required values")
    assert [line.strip() for line in lines[1:]] == [
        "data (Data)",
        "optimizer (Sgd or Adam)",
        "train_steps (int)",
        "model.network.emb_dim (int)",
    ]


def test_wrong_types_of_a_recipe_say_where_they_were_set() -> None:
    with pytest.raises(UserError) as caught:
        config_lib.build(example.wrong_types())
    message = str(caught.value)
    assert "2 mistakes" in message
    assert "batch_size: expected int, got str '8'" in message
    assert "model.z_loss: expected float, got None" in message
    assert "example.py:" in message
    assert "(wrong_types)" in message


def test_wrong_values_are_reported_with_wrong_types_and_what_is_missing() -> None:
    """A component whose own types are wrong, or whose part is refused, is not asked."""
    config = config_lib.apply_overrides(
        example.small(), ["model.network.num_heads=5", "optimizer.learning_rate=-1"]
    )
    config.model.z_loss = None
    del config.train_steps
    with pytest.raises(UserError) as caught:
        config_lib.build(config)
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 mistakes:"
    assert lines[1].startswith("  model.z_loss: expected float, got None.")
    assert "train_steps (int)" in lines[3]
    assert lines[4] == "  model.network: emb_dim 64 is not a multiple of num_heads 5."
    assert lines[5] == "  optimizer: learning_rate must be positive, not -1.0."
    assert len(lines) == 6


def test_list_in_a_recipe_becomes_the_declared_tuple() -> None:
    config = example.small()
    config.model.network.mlp_activations = ["relu"]
    job = config_lib.build(config_lib.complete(config))
    assert job.model.network.mlp_activations == ("relu",)


def test_instance_in_a_recipe_can_be_overridden() -> None:
    config = example.small()
    config.logging = example.Logging(period=7)
    changed = config_lib.apply_overrides(config, ["logging.name=x"])
    assert config_lib.build(changed).logging == example.Logging(period=7, name="x")


def test_flat_text_without_defaults() -> None:
    config = config_lib.apply_overrides(example.small(), ["model.z_loss=0.0", "logging.name=x"])
    config.evaluation = None
    assert config_lib.as_flat_text(config, defaults=False).splitlines() == [
        "model.network.emb_dim = 64",
        "model.z_loss = 0.0",
        "data.lengths.inputs = 512",
        "data.lengths.targets = 114",
        "optimizer = @tests.config.example.Sgd",
        "optimizer.learning_rate = 0.1",
        "train_steps = 100",
        "logging.name = 'x'",
    ]


def test_every_line_of_flat_text_can_be_set() -> None:
    config = example.with_list()
    lines = config_lib.as_flat_text(config).splitlines()
    overrides = [line.replace(" = ", "=", 1) for line in lines]
    swaps = [text for text in overrides if "=@" in text]
    assert swaps == [
        "optimizer=@tests.config.example.Sgd",
        "evaluation=@tests.config.example.Evaluation",
    ]
    plain = [text for text in overrides if text not in swaps]
    assert config_lib.as_flat_text(config_lib.apply_overrides(config, plain)).splitlines() == lines
    config_lib.apply_overrides(config, swaps)


def test_history_shows_the_line_of_the_recipe_that_calls_a_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe_with_builders.py").write_text(
        "from tests.config import example\n\ndef recipe():\n    return example.small()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = config_lib.as_history_text(config_lib.resolve("recipe_with_builders.recipe"))
    line = next(line for line in text.splitlines() if line.startswith("train_steps"))
    assert line.endswith("recipe_with_builders.py:4 (recipe → example.small)")


def test_history_says_where_each_value_comes_from() -> None:
    config = config_lib.apply_overrides(
        example.small(),
        ["data.lengths.inputs=3", config_lib.Override("apply", "tests.config.example.short")],
    )
    origin = {}
    for line in config_lib.as_history_text(config).splitlines():
        setting, _, comment = line.partition("#")
        origin[setting.partition(" = ")[0]] = comment.strip()
    assert origin["data.lengths.inputs"] == "--set data.lengths.inputs=3 (command line)"
    assert "example.py" in origin["data.lengths.targets"]
    assert origin["data.lengths.targets"].endswith("(small)")
    assert origin["optimizer.learning_rate"].endswith("(sgd)")
    assert origin["model.network.emb_dim"].endswith("(small)")
    assert origin["train_steps"].endswith("(short)")
    assert origin["logging.period"].endswith("(short)")
    assert origin["logging.name"] == "default"
    assert origin["batch_size"] == "default"


@pytest.mark.parametrize("recipe", RECIPES)
def test_python_makes_the_equal_config(recipe: Any, tmp_path: Path) -> None:
    config = config_lib.complete(recipe())
    file = tmp_path / "config.py"
    file.write_text(config_lib.as_python(config, 'A "title" \\ of it.'))
    again = runpy.run_path(str(file))["config"]()
    assert again == config
    assert fdl.build(again) == fdl.build(config)
    assert max(map(len, file.read_text().splitlines())) <= 100


def test_python_writes_types_enums_and_infinity() -> None:
    config = fdl.Config(example.Plain, function=example.sgd)
    text = config_lib.as_python(config, "x")
    assert "function=sgd" in text
    odd = fdl.Config(example.Sgd, learning_rate=float("inf"))
    namespace: dict[str, Any] = {"__name__": "x"}
    exec(config_lib.as_python(odd, "x"), namespace)
    assert namespace["config"]() == odd


@pytest.mark.parametrize("recipe", RECIPES)
def test_json_reloads_to_the_identical_config(recipe: Any) -> None:
    config = config_lib.complete(recipe())
    text = config_lib.dump_json(config)
    again = config_lib.load_json(text, "x.json")
    assert again == config
    assert fdl.build(again) == fdl.build(config)
    assert config_lib.dump_json(again) == text


def test_json_keeps_what_is_shared() -> None:
    again = config_lib.load_json(config_lib.dump_json(example.small()), "x.json")
    assert again.evaluation.network is again.model.network
    assert again.evaluation.lengths is again.data.lengths
    # A default that changes in the code does not change a stored run.
    assert again.model.__arguments__["z_loss"] == 1e-4


def test_json_refuses_what_python_itself_offers() -> None:
    text = config_lib.dump_json(example.plain())
    evil = text.replace('"tests.config.example"', '"os"').replace('"Plain"', '"system"')
    assert evil != text
    with pytest.raises(UserError, match=r"names os\.system"):
        config_lib.load_json(evil, "x.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", '{"root": 1, "objects": {}}'])
def test_json_that_is_no_config(text: str) -> None:
    with pytest.raises(UserError, match=r"x\.json is not"):
        config_lib.load_json(text, "x.json")


def test_json_of_code_that_has_gone() -> None:
    text = config_lib.dump_json(example.plain())
    with pytest.raises(UserError, match="Plainer"):
        config_lib.load_json(text.replace('"Plain"', '"Plainer"'), "x.json")
    with pytest.raises(UserError, match=r"no_such_module"):
        config_lib.load_json(text.replace("tests.config.example", "no_such_module"), "x.json")


def test_lambda_cannot_be_stored() -> None:
    config = fdl.Config(example.Plain, function=lambda: 1)
    with pytest.raises(UserError, match="cannot be written as JSON"):
        config_lib.dump_json(config)


def test_diff() -> None:
    old = example.small()
    new = config_lib.apply_overrides(
        example.small(emb_dim=128),
        ["optimizer=@tests.config.example.Adam", "+data.lengths.more=1", "evaluation=None"],
    )
    lines = [str(change) for change in config_lib.diff(old, new)]
    assert "model.network.emb_dim: 64 → 128" in lines
    assert "optimizer: @tests.config.example.Sgd → @tests.config.example.Adam" in lines
    assert "optimizer.learning_rate: 0.1 → 0.001" in lines
    assert "optimizer.momentum: removed, was None" in lines
    assert "optimizer.betas: added, (0.9, 0.999)" in lines
    assert "data.lengths.more: added, 1" in lines
    assert "evaluation: @tests.config.example.Evaluation → None" in lines
    assert not any(line.startswith("model.z_loss") for line in lines)


def test_diff_tells_true_from_one() -> None:
    old, new = example.small(), example.small()
    old.model.network.scan_layers = 1
    new.model.network.scan_layers = True
    assert [str(change) for change in config_lib.diff(old, new)] == [
        "model.network.scan_layers: 1 → True",
        "evaluation.network.scan_layers: 1 → True",  # The same component.
    ]
