"""mT0's English training mixtures (https://github.com/lintangsutawika/multilingual-t0).

They are T0's tasks in other groups: what T0 holds out is trained on, and English tasks whose
translations are evaluated (XTREME's) come only with `mt0p_train_mixture`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mtf.prompts.templates import Templates
from mtf.tasks import t0
from mtf.tasks.t0 import Dataset, Rated

# GPT-3's evaluation sets that mT0's repository has in other groups than `gpt_train`.
_NOT_IN_GPT = {"squad_v2", "openbookqa/main", "race/high", "race/middle"}
_HELD_OUT_BY_T0 = {"winogrande/winogrande_xl", "super_glue/cb", "super_glue/rte", "anli"}
_XTREME = {
    "super_glue/wsc.fixed",
    "super_glue/copa",
    "multi_nli",
    "paws/labeled_final",
    "squad_v2",
}


def gpt_rows() -> tuple[Dataset, ...]:
    """Returns the datasets of `gpt_train`."""
    return tuple(row for row in t0.select(train={"GPT"}) if row.key not in _NOT_IN_GPT)


def train_rows() -> tuple[Dataset, ...]:
    """Returns the datasets of `mt0_train_mixture`."""
    rows = t0.select(train={"BASE", "GPT", "SGLUE"}, keys=_HELD_OUT_BY_T0)
    return tuple(row for row in rows if row.key not in _XTREME)


def xtreme_rows() -> tuple[Dataset, ...]:
    """Returns the datasets that `mt0p_train_mixture` adds."""
    return t0.select(keys=_XTREME)


def train(rows: Iterable[Dataset], templates: Templates) -> tuple[Rated, ...]:
    """Returns all prompts at T0's rates, but ANLI's at the cap, as it has no split called train."""
    rows = tuple(rows)
    return tuple(
        (task, t0.MAX_EXAMPLES_PER_DATASET if task.dataset == "anli" else rate)
        for task, rate in t0.train(rows, templates)
    )
