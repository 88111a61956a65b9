"""Paths: what is written is read back."""

from __future__ import annotations

import pytest

from mtf.base.errors import UserError
from mtf.config.paths import format_path, parse_path


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
