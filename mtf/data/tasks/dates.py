"""Defines the task `dates`: a date in one of many notations is turned into ISO 8601's.

The records are generated, so the task needs no dataset. `recipes.quickstart` trains on it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from mtf.data.sources.records import RecordSource
from mtf.data.tasks.registry import RowTask

NAME = "dates"
_FIRST, _LAST = date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()
# Every 20th day is held out from training in all notations; 3 May 1999 is one of these days.
_HELD_OUT_PERIOD, _HELD_OUT = 20, date(1999, 5, 3).toordinal() % 20
_NUM_RECORDS = {"train": 40_000, "validation": 1_000}
_MONTHS = (  # The fields {en}, {de}, {es}, {fr} and {ro} in the notations are names of months.
    "January February March April May June July August September October November December",
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "ianuarie februarie martie aprilie mai iunie iulie august septembrie octombrie noiembrie "
    "decembrie",
)
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_NOTATIONS = (
    *("{day} {en} {year}", "{en} {day}, {year}", "{day}-{short}-{year}", "{short} {day} {year}"),
    *("{nth} of {en} {year}", "the {nth} of {en}, {year}", "{en} {nth}, {year}"),
    *("{weekday}, {day} {en} {year}", "{weekday}, {en} {nth}, {year}"),
    *("{day}.{month}.{year}", "{year}/{month}/{day}"),
    *("{day}. {de} {year}", "{day} de {es} de {year}", "{day} {fr} {year}", "{day} {ro} {year}"),
)


@dataclass(frozen=True)
class Dates(RecordSource):
    """Dates from 1900 to 2099; each record has the columns `inputs` and `targets`."""

    splits: Mapping[str, str] = field(default_factory=lambda: {name: name for name in _NUM_RECORDS})

    def records(self, name: str) -> list[dict[str, Any]]:
        """See `RecordSource`."""
        is_held_out = name == "validation"
        days = [
            day
            for day in range(_FIRST, _LAST + 1)
            if (day % _HELD_OUT_PERIOD == _HELD_OUT) == is_held_out
        ]
        rng, n = random.Random(name), _NUM_RECORDS[name]
        drawn = zip(rng.choices(days, k=n), rng.choices(_NOTATIONS, k=n), strict=True)
        made = ((date.fromordinal(day), notation) for day, notation in drawn)
        return [{"inputs": written(day, how), "targets": day.isoformat()} for day, how in made]


def written(day: date, notation: str) -> str:
    """Writes a date in a notation, such as "{nth} of {en} {year}"."""
    en, de, es, fr, ro = (names.split()[day.month - 1] for names in _MONTHS)
    is_teen = 11 <= day.day <= 13
    suffix = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    return notation.format(
        **{"day": day.day, "month": day.month, "year": day.year, "nth": f"{day.day}{suffix}"},
        **{"en": en, "de": de, "es": es, "fr": fr, "ro": ro, "short": en[:3]},
        weekday=_WEEKDAYS[day.weekday()],
    )


def dates_tasks() -> dict[str, RowTask]:
    """Returns the task by name."""
    task = RowTask.of_source(NAME, Dates(), dict, metric_names=("accuracy",), inputs_add_eos=True)
    return {NAME: task}
