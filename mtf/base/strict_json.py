"""Reads and writes standard JSON, which cannot represent NaN or infinity."""

from __future__ import annotations

import json
import math
from typing import Any

from mtf.storage import AnyPath


def dumps(value: Any, **options: Any) -> str:
    """Returns `value` as JSON, with null in place of NaN and infinities."""
    return json.dumps(_finite(value), allow_nan=False, **options)


def read_lines(path: AnyPath) -> list[dict[str, Any]]:
    """Returns the objects in a JSON Lines file up to the first line that is incomplete.

    Floats that were NaN or infinite when they were written are None.
    """
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
