"""Reads and writes standard JSON, which cannot represent NaN or infinity."""

from __future__ import annotations

import json
import math
from typing import Any

from mtf.base.errors import UserError
from mtf.storage import AnyPath


def dumps(value: Any, **options: Any) -> str:
    """Returns `value` as JSON, with null in place of NaN and infinities."""
    return json.dumps(_finite(value), allow_nan=False, **options)


def loads(text: str | bytes) -> Any:
    """Returns the value of a JSON text; raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: AnyPath) -> dict[str, Any]:
    """Returns the JSON object in a file; raises ValueError if the file contains none."""
    value = loads(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def read_own(path: AnyPath, advice: str) -> dict[str, Any]:
    """Returns the JSON object in a file that mtf wrote; raises UserError if it is damaged."""
    try:
        return read_object(path)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}. {advice}") from error


def read_lines(path: AnyPath) -> list[dict[str, Any]]:
    """Returns the objects in a JSON Lines file up to the first line that is incomplete or damaged.

    Floats that were NaN or infinite when they were written are None.
    """
    lines = []
    for line in path.read_bytes().splitlines():
        try:
            value = loads(line)
        except ValueError:
            break
        if not isinstance(value, dict):
            break
        lines.append(value)
    return lines


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
