"""Paths: what is written is read back."""

from __future__ import annotations

import pytest

from mtf.config.paths import format_path, nearest_paths, parse_path, split_assignment
from mtf.errors import UserError


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("a.b_c.d", ("a", "b_c", "d")),
        ("a.0.b", ("a", 0, "b")),
        ("a[0].b", ("a", 0, "b")),
        ("a['x.y'].b", ("a", "x.y", "b")),
        ("a['0']", ("a", "0")),
        ("a[x]", ("a", "x")),
        ("a.c4-en/3:x", ("a", "c4-en/3:x")),
        ("a['x=y z']", ("a", "x=y z")),
    ],
)
def test_parse(text: str, path: tuple[object, ...]) -> None:
    assert parse_path(text) == path
    assert parse_path(format_path(path)) == path


@pytest.mark.parametrize("text", ["", ".", ".a", "a..b", "a[", "a]"])
def test_no_path(text: str) -> None:
    with pytest.raises(UserError, match="path"):
        parse_path(text)


def test_assignment_splits_at_the_first_equals_sign_outside_brackets() -> None:
    assert split_assignment("a.b=c=d") == ("a.b", "c=d")
    assert split_assignment("a['x=y']=3") == ("a['x=y']", "3")
    assert split_assignment("+a.b = 3") == ("+a.b", "3")


def test_nearest_prefers_what_ends_alike_then_what_is_near_the_root() -> None:
    known = ["x.deep.rate", "model.dropout_rate", "rate", "a.b.dropout_rate", "train_steps"]
    assert nearest_paths("dropout_rate", known)[:2] == ["model.dropout_rate", "a.b.dropout_rate"]
    assert nearest_paths("trian_steps", known) == ["train_steps"]
    assert nearest_paths("zzz", known) == []
