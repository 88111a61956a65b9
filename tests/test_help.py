"""`RECIPE --help` and `RECIPE --help PATH`."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path

import fiddle as fdl
import pytest

import recipes
from mtf import config as config_lib
from mtf.__main__ import COMMANDS
from mtf.__main__ import main as mtf_main
from mtf.cli.run import main
from mtf.config import tree
from tests.recipes import regenerate

ROOT = Path(__file__).resolve().parents[1]
SMALL = "tests.config.example.small"
T0 = "recipes.t0pp_xxl"

Help = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Help:
    """What a command line prints that exits with status 0."""
    monkeypatch.chdir(ROOT)

    def call(*arguments: str) -> str:
        assert main(arguments) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return call


def rows(text: str) -> dict[str, str]:
    """The table of the help of a field."""
    names = ("type", "default", "value", "origin", "change")
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: rest.strip() for name, _, rest in lines if name in names}


def test_help_without_a_recipe_is_that_of_the_command(shown: Help) -> None:
    text = shown("--help")
    assert text.startswith("usage: python -m mtf.run")
    assert shown("-h") == text


def test_help_of_a_recipe(shown: Help) -> None:
    text = shown(T0, "--help")
    assert shown("--help", T0) == text
    first, _, rest = text.partition("\n\n")
    name, _, place = first.partition(" ")
    file, _, line = place.strip("()").partition(":")
    assert (name, file) == (T0, "recipes/t0.py")
    assert (ROOT / file).read_text().splitlines()[int(line) - 1] == "def _t0("
    documented = inspect.getdoc(recipes.t0pp_xxl) or ""
    words = documented.partition("\n\nArgs:")[0].split()
    assert rest.split()[: len(words) + 1] == [*words, "arguments:"]
    argument = "  tokens_per_batch: int = 1048576\n      number of input tokens in a batch"
    assert argument in text
    assert "  cache_dir: str, tuple[str, ...] or None = None\n      output of `python -m" in text
    assert "  train_steps: int\n      the last step, counted from the start" in text
    assert f"  python -m mtf.run {T0} --dry-run\n" in text


def test_each_recipe_of_a_family_has_the_help_of_the_family_under_its_name(shown: Help) -> None:
    text = shown("recipes.t0_3b", "--help")
    assert "\nTrains T0 3B on the 38 datasets " in text
    assert "| `t0_3b`                     | XL   | `t0_train` (38 datasets) " in text
    assert "python -m mtf.run recipes.t0_3b`" in text and "NAME" not in text
    assert "size_and_mixture" not in text and "    number of input tokens in a batch" in text


def test_help_of_a_value_that_the_recipe_sets(shown: Help) -> None:
    text = shown(T0, "--help", "trainer.num_microbatches")
    meaning = "the number of parts into which a batch is split."
    assert text.startswith(f"trainer.num_microbatches\n\n{meaning} ")
    found = rows(text)
    file, _, line = found.pop("origin").partition(" ")[0].partition(":")
    assert "num_microbatches" in "".join(
        (ROOT / file).read_text().splitlines()[int(line) - 1 :][:3]
    )
    assert found == {
        "type": "int",
        "default": "1",
        "value": "8",
        "change": "--set trainer.num_microbatches=…",
    }


def test_help_of_a_value_after_overrides(shown: Help) -> None:
    found = rows(shown(T0, "--set", "train_steps=7", "--help", "train_steps"))
    assert found["value"] == "7"
    assert found["origin"] == "--set train_steps=7 (command line)"
    assert "default" not in found
    found = rows(shown(T0, "--apply", "short(steps=7)", "--help", "train_steps"))
    assert found["value"] == "1100007"
    assert found["origin"].startswith("recipes/fiddlers.py:")


def test_help_of_a_default(shown: Help) -> None:
    found = rows(shown(T0, "--help", "trainer.stats_period"))
    assert (found["default"], found["value"], found["origin"]) == ("100", "100", "default")
    found = rows(shown("tests.config.example.unfinished", "--help", "model.network.emb_dim"))
    assert found == {"type": "int", "value": "not set", "change": "--set model.network.emb_dim=…"}


def test_help_of_a_component_lists_its_fields(shown: Help) -> None:
    text = shown(T0, "--help", "optimizer")
    assert rows(text)["type"] == "AdafactorConfig, AdamWConfig or GradientTransformation"
    assert rows(text)["value"] == "@mtf.training.settings.AdafactorConfig"
    classes = [f"@mtf.training.settings.{name}Config" for name in ("Adafactor", "AdamW")]
    assert f"\nchoices  {classes[0]}\n         {classes[1]}\n" in text
    assert "\n  decay_rate: float = 0.8\n      the exponent in the decay of the second" in text
    assert "  logging: Logging = @tests.config.example.Logging\n" in shown(SMALL, "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_wraps_at_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        mtf_main([name, "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", ["finetune", "t0pp_xxl", "evaluate", "mt0_xxl"])
def test_help_of_a_recipe_wraps_between_words_at_80_columns(shown: Help, name: str) -> None:
    lines = shown(f"recipes.{name}", "--help").splitlines()
    assert [line for line in lines if len(line) > 80 and line[0] != "|"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((SMALL, "--help", "train_step"), "--help train_step: Job has no field train_step."),
        ((SMALL, "--help", "train_step"), "Did you mean train_steps"),
        ((SMALL, "--help", "data.lengths.x"), "data.lengths has no key x; keys: inputs, targets"),
        ((SMALL, "--help", "model..x"), "not a path"),
        ((T0, "--help", "evaluator.period"), "evaluator is None. Set it first: --set evaluator=@"),
        ((f"{SMALL}l", "--help"), f"Did you mean {SMALL}?"),
        (("--help", "recipes.quickstrt"), "Did you mean recipes.quickstart?"),
        ((SMALL, "--help", "train_steps", "--set", "modl=3"), "modl=3: Job has no field modl"),
        ((SMALL, "--help", "train_steps", "--foo"), "There is no option --foo"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err


def test_every_field_of_every_recipe_is_explained() -> None:
    unexplained = set()
    calls = ("cache(mixture='m', output='o')", "convert(checkpoint='c', output='o')")
    for name in [*regenerate.NAMES, *calls]:
        config = tree.complete(config_lib.resolve(f"recipes.{name}"))
        for _, node in tree.components(config):
            target = fdl.get_callable(node)
            text = "\n".join(base.__doc__ or "" for base in inspect.getmro(target))
            unexplained |= {
                f"{target.__name__}.{name}"
                for name in tree.parameters(node)
                if f" {name}:" not in text
            }
    assert unexplained == set()
