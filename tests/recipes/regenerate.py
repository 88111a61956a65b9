"""Writes the golden configs, the tables of docs/recipes.md and the model in recipes/tiny anew.

`python -m tests.recipes.regenerate`, after a recipe was changed on purpose; `git diff` then shows
what that does to every value.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from pathlib import Path

import recipes
from mtf import config as config_lib
from mtf.jobs import Convert
from tests.conversion import writers
from tests.recipes import parity

RECIPES = [each.name.removeprefix("recipes.") for each in config_lib.list_recipes()]
# The recipes that are complete without arguments.
NAMES = [
    name
    for name in RECIPES
    if all(
        parameter.default is not parameter.empty
        for parameter in inspect.signature(getattr(recipes, name)).parameters.values()
    )
]
GOLDEN = Path(__file__).parent / "golden"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
START = "<!-- tables: python -m tests.recipes.regenerate -->\n"


def flat(name: str) -> str:
    """Returns what `--print all` shows of a recipe."""
    return config_lib.as_flat_text(config_lib.complete(config_lib.resolve(f"recipes.{name}")))


def page(text: str) -> str:
    """Returns the page with its tables as they should be; they stand at its end."""
    before, marker, _ = text.partition(START)
    return f"{before}{marker}\n{parity.as_markdown()}"


def main() -> None:
    """Writes everything."""
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for name in NAMES:
        (GOLDEN / f"{name}.txt").write_text(flat(name))
    PAGE.write_text(page(PAGE.read_text()))
    write_tiny_model(Path(recipes.__file__).parent / "tiny" / "model")


def write_tiny_model(output: Path) -> None:
    """Writes the model of `--apply smoke_test`: a T5 1.1 over bytes with random weights."""
    shutil.rmtree(output, ignore_errors=True)
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    parameters = writers.random_parameters(emb_dim=16, num_heads=2, mlp_dim=16, **layers)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = writers.write_t5x(Path(folder), parameters)
        options = {"vocabulary": "byt5", "dtype": "bfloat16", "verify": False}
        Convert(str(checkpoint), str(output), to="hf", **options).run()
    for name in ("README.md", "checksums.json", "mtf_job.json"):
        (output / name).unlink()


if __name__ == "__main__":
    main()
