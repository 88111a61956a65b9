"""Configs that differ in some settings, for a loop in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import fiddle as fdl

from mtf.config import apply_overrides
from mtf.sweep.values import as_text, rows


class Variant(NamedTuple):
    """The values of some settings, and the config with them."""

    values: dict[str, Any]
    config: fdl.Config


def variants(
    config: fdl.Config,
    values: Mapping[str, Sequence[Any]],
    *,
    mode: Literal["grid", "zip"] = "grid",
) -> Iterator[Variant]:
    """Yields a config for each combination of values.

    Args:
      config: the config of a job, which is not changed.
      values: path, as for `--set`, → its values: literals, or texts such as "@builder(…)".
      mode: "grid": all combinations; "zip": the first values of all settings, then the second ones.

    Raises:
      UserError: a path is unknown or a value has the wrong type, or, with "zip", the numbers of
        values differ.
    """
    for own in rows(values, mode):
        texts = [f"{path}={as_text(value)}" for path, value in own.items()]
        yield Variant(own, apply_overrides(config, texts))
