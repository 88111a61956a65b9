"""Converts configs to JSON and back."""

from __future__ import annotations

import enum
import inspect
import json
import os
import sys
from typing import Any

import fiddle as fdl
from fiddle.experimental import serialization

from mtf.base.environment import working_directory
from mtf.base.errors import UserError
from mtf.config import moved, tree, types
from mtf.storage import as_path

_BUILTIN_TYPES = {"tuple", "list", "dict", "set", "frozenset", "bytes", "slice"}


class ImportPolicy(serialization.PyrefPolicy):
    """Allows a config to refer only to classes and functions outside the standard library.

    This prevents an untrusted config.json from naming `os.system` as a component.
    """

    def allows_import(self, module: str, symbol: str) -> bool:
        """Returns whether `symbol` may be imported from `module`."""
        if module == "builtins":
            return symbol in _BUILTIN_TYPES
        return module.partition(".")[0] not in sys.stdlib_module_names

    def allows_value(self, value: Any) -> bool:
        """Returns whether a config may contain this imported value."""
        return isinstance(value, type | enum.Enum) or inspect.isroutine(value)

    def __str__(self) -> str:
        return "classes and functions outside the standard library"


def dump_json(config: fdl.Config, *, defaults: bool = True) -> str:
    """Returns a config as JSON; raises UserError if a value, for example a lambda, has no name.

    If `defaults` is true, all default values are included, so that a later change of a default in
    the code does not change the stored config.
    """
    errors = (serialization.UnserializableValueError, serialization.PyrefPolicyError)
    try:
        config = tree.freeze_defaults(config) if defaults else config
        text = serialization.dump_json(config, ImportPolicy(), indent=1)
    except (*errors, AttributeError) as error:
        raise UserError(
            "The config cannot be written as JSON, so the run could not be resumed: "
            f"{str(error).strip()}. Use plain values, and classes and functions that are defined "
            "at the top level of a module."
        ) from None
    return json.dumps(json.loads(text, object_hook=_with_public_module), indent=1) + "\n"


def _with_public_module(value: dict[str, Any]) -> dict[str, Any]:
    """Replaces the module in a JSON reference to a class or function with its public module."""
    if value.get("type") != "pyref":
        return value
    return {**value, "module": types.public_module(value["module"], value["name"])}


def load_json(text: str, source: str) -> fdl.Config:
    """Returns the config that the JSON `text` describes. Error messages name the file `source`."""
    try:
        todays = json.loads(text, object_hook=moved.with_todays_names)
        config = serialization.load_json(json.dumps(todays), ImportPolicy())
    except json.JSONDecodeError as error:
        raise UserError(f"{source} is not JSON: {error}.") from None
    except (ModuleNotFoundError, AttributeError) as error:
        reason = str(getattr(error, "proxy_base_exception", error))
        folder = working_directory(as_path(source).parent)
        started = f"; the run was started in {folder}" if folder else ""
        raise UserError(
            f"{source} names code that cannot be imported: {reason}. Your modules are imported "
            f"from the working directory ({os.getcwd()}) or PYTHONPATH{started}."
        ) from None
    except serialization.PyrefPolicyError as error:
        raise UserError(f"{source}: {error}") from None
    except (KeyError, TypeError, serialization.DeserializationError):
        config = None
    if not isinstance(config, fdl.Config):
        raise UserError(f"{source} is not a config written by mtf.")
    return config
