"""Writes the golden configs and the tables of docs/recipes.md anew.

`python -m tests.recipes.regenerate`, after a recipe was changed on purpose; `git diff` then shows
what that does to every value.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import recipes
from mtf import config as config_lib
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


if __name__ == "__main__":
    main()
