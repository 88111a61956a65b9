"""The generated dates on which the quickstart trains."""

from __future__ import annotations

from datetime import date

import pytest

from mtf.data.tasks import dates
from mtf.data.tasks.mixtures import mixture

RECORDS = {name: dates.Dates().records(name) for name in ("train", "validation")}


@pytest.mark.parametrize(
    ("day", "notation", "expected"),
    [
        ("1999-05-03", "{nth} of {en} {year}", "3rd of May 1999"),
        ("1999-05-03", "{day} de {es} de {year}", "3 de mayo de 1999"),
        ("2013-11-12", "{weekday}, {en} {nth}, {year}", "Tuesday, November 12th, 2013"),
        ("1969-02-21", "the {nth} of {en}, {year}", "the 21st of February, 1969"),
        ("2000-03-02", "{day}. {de} {year}", "2. März 2000"),
        ("2000-08-22", "{day} {fr} {year}", "22 août 2000"),
        ("2000-06-13", "{day} {ro} {year}", "13 iunie 2000"),
        ("2000-12-01", "{day}-{short}-{year}", "1-Dec-2000"),
        ("2000-12-01", "{day}.{month}.{year}", "1.12.2000"),
    ],
)
def test_a_date_in_a_notation(day: str, notation: str, expected: str) -> None:
    assert dates.written(date.fromisoformat(day), notation) == expected


def test_every_20th_day_is_held_out() -> None:
    first = date(1999, 5, 3)  # It is in README.md.
    for name, records in RECORDS.items():
        days = {date.fromisoformat(record["targets"]) for record in records}
        assert {(day - first).days % 20 == 0 for day in days} == {name == "validation"}
        assert {day.year // 100 for day in days} == {19, 20}


def test_the_records_are_always_the_same() -> None:
    [(task, _)] = mixture("dates").tasks
    assert RECORDS["train"][2] == {"inputs": "Friday, 18 July 2003", "targets": "2003-07-18"}
    assert [*task.make_rows("train").rows(0, 40_000)] == RECORDS["train"]
    assert RECORDS["validation"][1] == {
        "inputs": "Tuesday, 29 November 2039",
        "targets": "2039-11-29",
    }


def test_no_date_is_truncated() -> None:
    """The quickstart's rows have 32 input tokens, of which EOS is the last."""
    longest = max(len(record["inputs"].encode()) for record in RECORDS["train"])
    assert longest == len("Wednesday, September 22nd, 2000") == 31
