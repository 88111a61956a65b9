"""Converts TREC's question classes to those of 2021, which promptsource's templates expect.

In August 2022, version 2.0.0 of the dataset on the hub renamed and renumbered the classes
(https://github.com/huggingface/datasets/pull/4801). `label-coarse` became `coarse_label`, and
`label-fine`, which had 47 classes, became `fine_label`, which has 50, because `desc` occurs in two
coarse classes and `other` in three. The questions and their order did not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COARSE_2021 = ("DESC", "ENTY", "ABBR", "HUM", "NUM", "LOC")
_FINE_2021 = (
    *("manner", "cremat", "animal", "exp", "ind", "gr", "title", "def", "date", "reason"),
    *("event", "state", "desc", "count", "other", "letter", "religion", "food", "country"),
    *("color", "termeq", "city", "body", "dismed", "mount", "money", "product", "period"),
    *("substance", "sport", "plant", "techmeth", "volsize", "instru", "abb", "speed", "word"),
    *("lang", "perc", "code", "dist", "temp", "symbol", "ord", "veh", "weight", "currency"),
)
# Coarse class → its fine classes; both are in the order of their numbers since 2022.
_CLASSES_2022 = {
    "ABBR": "abb exp",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant "
    "product religion sport substance symbol techmeth termeq veh word",
    "DESC": "def desc manner reason",
    "HUM": "gr ind title desc",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other period perc speed temp volsize weight",
}
_COARSE = [_COARSE_2021.index(coarse) for coarse in _CLASSES_2022]
_FINE = [_FINE_2021.index(fine) for classes in _CLASSES_2022.values() for fine in classes.split()]


def as_in_2021(row: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a record to the columns and class numbers of 2021 unless it already has them."""
    if "coarse_label" not in row or "fine_label" not in row:
        return dict(row)
    coarse, fine = row["coarse_label"], row["fine_label"]
    others = {name: value for name, value in row.items() if not name.endswith("_label")}
    return {"label-coarse": _COARSE[coarse], "label-fine": _FINE[fine], **others}
