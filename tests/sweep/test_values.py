"""The values of a sweep, and their combinations."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

import recipes
from mtf.errors import UserError
from mtf.sweep import Study, variants
from mtf.sweep.results import Result, as_text, ranked
from mtf.sweep.values import combinations, parse_axes, parse_axis, split_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,3", ("1", "2", "3")),
        ("1", ("1",)),
        ("'a,b',c", ("'a,b'", "c")),
        ('("x","y"),("z",)', ('("x","y")', '("z",)')),
        ("@a.b(c=1, d=[2,3]),@a.e", ("@a.b(c=1, d=[2,3])", "@a.e")),
        ("None, 0.1", ("None", "0.1")),
    ],
)
def test_values_are_split_at_their_commas(text: str, expected: tuple[str, ...]) -> None:
    assert split_values(text) == expected


def test_grid_and_zip() -> None:
    axes = [parse_axis("a=1,2"), parse_axis("b.c=x,y")]
    assert [tuple(row.values()) for row in combinations(axes, "grid")] == [
        ("1", "x"),
        ("1", "y"),
        ("2", "x"),
        ("2", "y"),
    ]
    assert combinations(axes, "zip") == [{"a": "1", "b.c": "x"}, {"a": "2", "b.c": "y"}]


def test_draws_are_within_their_intervals_differ_and_are_the_same_again() -> None:
    axes = [parse_axis(text) for text in ("rate=log:1e-5..1e-1", "n=3..6", "w=0..0.5", "c=x,y")]
    rows = combinations(axes, "random", 200)
    assert rows == combinations(axes, "random", 200)
    assert len({tuple(row.values()) for row in rows}) == 200
    rates = [float(row["rate"]) for row in rows]
    assert min(rates) >= 0.99e-5 and max(rates) <= 1.01e-1
    # Half of the logarithms are below the middle; of uniform draws, 1% would be.
    assert 0.35 < sum(math.log10(rate) < -3 for rate in rates) / 200 < 0.65
    assert {row["n"] for row in rows} == {"3", "4", "5", "6"}
    assert all(0 <= float(row["w"]) <= 0.5 for row in rows)
    assert {row["c"] for row in rows} == {"x", "y"}


def test_there_are_no_more_draws_than_combinations() -> None:
    assert len(combinations([parse_axis("a=1,2"), parse_axis("b=3,4")], "random", 50)) == 4


@pytest.mark.parametrize(
    ("axes", "mode", "number", "said"),
    [
        (["a=1,,2"], "grid", None, "--sweep a=1,,2: a value is empty"),
        (["a=1,1"], "grid", None, "the value 1 is there twice"),
        (["a=1", "a=2"], "grid", None, "a is there twice; write all its values once"),
        (["a=2..1"], "random", 3, "expected LOW..HIGH with LOW < HIGH"),
        (["a=log:0..1"], "random", 3, "LOW < HIGH and both positive"),
        (["a=1..2"], "grid", None, "an interval is for --sweep-mode random or optuna"),
        (["a=1,2", "b=1"], "zip", None, "with zip, all settings need as many values; found a 2, b"),
        (["a=1,2"], "random", None, "--sweep-mode random needs --sweep-runs N"),
        (["a=1,2"], "grid", 3, "--sweep-mode grid takes no --sweep-runs"),
        (["a=1,2"], "random", 0, "--sweep-runs is 0; expected at least 1"),
    ],
)
def test_mistakes(axes: list[str], mode: str, number: int | None, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        combinations(parse_axes(axes), mode, number)  # type: ignore[arg-type]


def test_variants_in_python() -> None:
    config = recipes.quickstart()
    values = {"batch_size": [8, 16], "model.network.dtype": ["float32", "bfloat16"]}
    found = list(variants(config, values))
    assert [(v.config.batch_size, v.config.model.network.dtype) for v in found] == [
        (8, "float32"),
        (8, "bfloat16"),
        (16, "float32"),
        (16, "bfloat16"),
    ]
    assert found[1].values == {"batch_size": 8, "model.network.dtype": "bfloat16"}
    assert config.batch_size == 16 and config.model.network.dtype == "float32"
    assert len(list(variants(config, values, mode="zip"))) == 2
    with pytest.raises(UserError, match="batch_sizes"):
        list(variants(config, {"batch_sizes": [8]}))


def test_a_study_without_optuna_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"run: pip install 'mtf-jax\[optuna\]'"):
        Study(recipes.quickstart(), {"batch_size": "8..16"}, str(tmp_path / "new"), mode="min")
    assert not (tmp_path / "new").exists()


def test_the_table_begins_with_the_best_run() -> None:
    scores = {"000": 2.5, "001": None, "002": 0.25, "003": 3.0}
    results = [
        Result(name, {"a": f"v{name}"}, "failed" if score is None else "finished", score)
        for name, score in scores.items()
    ]
    assert [r.name for r in ranked(results, "min")] == ["002", "000", "003", "001"]
    assert [r.name for r in ranked(results, "max")] == ["003", "000", "002", "001"]
    assert as_text(ranked(results, "max"), "m").splitlines() == [
        "run  a     m     state",
        "003  v003  3     finished",
        "000  v000  2.5   finished",
        "002  v002  0.25  finished",
        "001  v001  -     failed",
    ]
