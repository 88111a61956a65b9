"""Converts configs to JSON and back."""

from __future__ import annotations

import json
import os
from typing import Any

import fiddle as fdl
from fiddle.experimental import serialization

from mtf.base.environment import working_directory
from mtf.base.errors import UserError
from mtf.config import allowed, moved, tree, types
from mtf.storage import as_path


def dump_json(config: fdl.Config) -> str:
    """Returns a config as JSON; raises UserError if a value, for example a lambda, has no name.

    All default values are included, so that a later change of a default in the code does not change
    the stored config.
    """
    errors = (serialization.UnserializableValueError, serialization.PyrefPolicyError)
    try:
        text = serialization.dump_json(tree.freeze_defaults(config))
        content = json.loads(text, object_hook=_with_public_module)
        text = json.dumps(content, indent=1)
        allowed.check_names(_names_in(text), "it", trust=True)
    except (*errors, AttributeError, UserError) as error:
        raise UserError(
            "The config cannot be written as JSON, so the run could not be resumed: "
            f"{str(error).strip()}. Use plain values, and classes and functions that are defined "
            "at the top level of a module."
        ) from None
    return f"{text}\n"


def _with_public_module(value: dict[str, Any]) -> dict[str, Any]:
    """Replaces the module in a JSON reference to a class or function with its public module."""
    if value.get("type") != "pyref":
        return value
    return {**value, "module": types.public_module(value["module"], value["name"])}


def _names_in(text: str) -> set[tuple[str, str]]:
    """Returns all pairs of a module and a name that Fiddle would import for a JSON text."""
    names = set()

    def note(value: dict[str, Any]) -> None:
        if value.get("type") == "pyref":
            names.add((str(value.get("module")), str(value.get("name"))))

    json.loads(text, object_hook=note)
    return names


def load_json(text: str, source: str, *, trust: bool = False) -> fdl.Config:
    """Returns the config that the JSON `text` describes.

    Args:
      text: the content of a config.json.
      source: the path of this file, for error messages.
      trust: whether the config may name any module of the user; see `mtf.config.allowed`.

    Raises:
      UserError: if `text` is not a config of mtf or names code that it may not name.
    """
    try:
        text = json.dumps(json.loads(text, object_hook=moved.with_todays_names))
        allowed.check_names(_names_in(text), source, trust)
    except json.JSONDecodeError as error:
        raise UserError(f"{source} is not JSON: {error}.") from None
    except (ModuleNotFoundError, AttributeError) as error:
        folder = working_directory(as_path(source).parent)
        started = f"; the run was started in {folder}" if folder else ""
        raise UserError(
            f"{source} names code that cannot be imported: {error}. Your modules are imported "
            f"from the working directory ({os.getcwd()}) or PYTHONPATH{started}."
        ) from None
    except RecursionError:
        text = "null"
    try:
        config = serialization.load_json(text)
    except Exception:  # Fiddle does not check the structure that it reads.
        config = None
    if not isinstance(config, fdl.Config):
        raise UserError(f"{source} is not a config written by mtf.")
    return config
