"""What the originals set, and where and how it stands in our recipes.

`originals.csv` has a row for each setting. The values under `original` were read in the originals,
which `SOURCES` names. `ours` is what the recipe's config has at `path`, in the original's value
where it is left out. Where the two differ, `derived` says how one follows from the other, or
`deviation` why they are not the same. `recipes` are names or patterns of recipes.

docs/recipes.md shows the deviations; `python -m tests.recipes.regenerate` writes them there.
"""

from __future__ import annotations

import ast
import csv
import fnmatch
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import recipes
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES

SOURCES = {
    "T0": "t-zero's training/README.md (the commands), the paper's section 5 (dropout, packing), "
    "t5's models/gin/models/t5.1.1.*.gin and mesh_tensorflow/transformer/utils.py (defaults)",
    "mT0": "multilingual-t0's README.md (the page) and t5x/gin, T5X's configs/runs/finetune.gin "
    "and examples/t5/mt5/*.gin, the paper of mT0 and bigscience-workshop/bigscience (data/xp3, "
    "evaluation/results/tr13/tzeroeval), the mT5 paper's Table 6",
    "Romanian": "t5x_models' ro_*.gin, ro_*_pretrain.gin and ro_*_tasks.py",
    "T5": "T5X's docs/usage/{pretrain,finetune}.md (the page), "
    "configs/runs/{pretrain,finetune}.gin, examples/t5/t5_1_1/**/*.gin",
}


class Row(NamedTuple):
    """A setting of an original; `expected` is what the config must have at `path`."""

    recipes: tuple[str, ...]
    setting: str
    original: Any
    path: str
    expected: Any
    derived: str
    deviation: str


def _value(text: str) -> Any:
    """A literal, or else a string."""
    if text == "FULLY_SHARDED_AXIS_RULES":
        return FULLY_SHARDED_AXIS_RULES
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _read() -> dict[str, list[Row]]:
    """Returns the rows of each family."""
    tables: dict[str, list[Row]] = {family: [] for family in SOURCES}
    with (Path(__file__).parent / "originals.csv").open(encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            names: list[str] = []
            for pattern in cells["recipes"].split():
                found = fnmatch.filter(vars(recipes), pattern)
                assert found, f"there is no recipe {pattern}"
                names += found
            original, ours = _value(cells["original"]), cells["ours"]
            expected = _value(ours) if ours else original
            about = cells["derived"], cells["deviation"]
            row = Row(tuple(names), cells["setting"], original, cells["path"], expected, *about)
            tables[cells["family"]].append(row)
    return tables


TABLES = _read()


def as_markdown() -> str:
    """Returns the lists of docs/recipes.md: the deviations of each family."""
    families: dict[tuple[str, str, str], list[str]] = {}  # a deviation → its families
    rows: dict[tuple[str, str, str], list[Row]] = {}
    for family, table in TABLES.items():
        for row in table:
            if row.deviation:
                key = (row.setting, row.path, row.deviation)
                families.setdefault(key, [])
                families[key] += [family] * (family not in families[key])
                rows.setdefault(key, []).append(row)
    parts = []
    for family, table in TABLES.items():
        everyone = list(dict.fromkeys(name for row in table for name in row.recipes))
        lines = [
            _item(_who(tuple(name for row in found for name in row.recipes), everyone), key, found)
            for key, found in rows.items()
            if families[key] == [family]
        ]
        parts += [f"### {family}\n\nSources: {SOURCES[family]}.", "\n".join(lines)]
    lines = [
        _item(", ".join(families[key]), key, found)
        for key, found in rows.items()
        if len(families[key]) > 1
    ]
    parts += ["### Several families", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _item(who: str, key: tuple[str, str, str], rows: Sequence[Row]) -> str:
    setting, path, deviation = key
    original = _values([row.original for row in rows])
    ours = _values([row.expected for row in rows])
    item = f"* {who}: `{setting}` {original} → `{path}` {ours}: {deviation}"
    return "\n".join(
        textwrap.wrap(
            item, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    )


def _values(values: Sequence[object]) -> str:
    """Returns the value, or the first of several, as in `1`, …; a long one is cut."""
    shown = repr(values[0])
    shown = shown if len(shown) <= 90 else f"{shown[:40]}…"
    return f"`{shown}`" + ", …" * (len(set(map(repr, values))) > 1)


def _who(names: tuple[str, ...], everyone: list[str]) -> str:
    missing = [name for name in everyone if name not in names]
    if len(missing) < len(names) and len(missing) < 4:
        return "all but " + ", ".join(missing) if missing else "all"
    return ", ".join(names)
