"""Reads and writes JSON files."""

from __future__ import annotations

import json
from typing import Any

from conversion.tensor import ConversionError, IncompleteCheckpoint
from mtf.storage import AnyPath


def read_json(path: AnyPath) -> dict[str, Any]:
    """Returns the JSON object in a file; raises ConversionError if the file contains none."""
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} is not a JSON object.")
    return content


def write_json(path: AnyPath, content: dict[str, Any], indent: int | None = 2) -> None:
    """Writes a JSON object to a file."""
    text = json.dumps(content, ensure_ascii=False, indent=indent)
    path.write_text(text + "\n", encoding="utf-8")
