"""Writes configs as JSON and reads them back."""

from __future__ import annotations

import enum
import inspect
import json
import sys
from typing import Any

import fiddle as fdl
from fiddle.experimental import serialization

from mtf.config import moved, tree, types
from mtf.errors import UserError

_BUILTIN_TYPES = {"tuple", "list", "dict", "set", "frozenset", "bytes", "slice"}


class ImportPolicy(serialization.PyrefPolicy):
    """Allows classes and functions outside the standard library.

    A config.json from elsewhere thus cannot name `os.system` as a component.
    """

    def allows_import(self, module: str, symbol: str) -> bool:
        """Returns whether `symbol` may be imported from `module`."""
        if module == "builtins":
            return symbol in _BUILTIN_TYPES
        return module.partition(".")[0] not in sys.stdlib_module_names

    def allows_value(self, value: Any) -> bool:
        """Returns whether a config may have this imported value."""
        return isinstance(value, type | enum.Enum) or inspect.isroutine(value)

    def __str__(self) -> str:
        return "classes and functions outside the standard library"


def dump_json(config: fdl.Config, *, defaults: bool = True) -> str:
    """Returns the config as JSON; raises a UserError for values like lambdas.

    `defaults` adds the defaults, so that the JSON is still true when they change.
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
    """Returns an object of a config.json; a class or function is named as users import it."""
    if value.get("type") != "pyref":
        return value
    return {**value, "module": types.public_module(value["module"], value["name"])}


def load_json(text: str, source: str) -> fdl.Config:
    """Returns the config in `text` of the file `source`; raises a UserError if it cannot."""
    try:
        todays = json.loads(text, object_hook=moved.with_todays_names)
        config = serialization.load_json(json.dumps(todays), ImportPolicy())
    except json.JSONDecodeError as error:
        raise UserError(f"{source} is not JSON: {error}.") from None
    except (ModuleNotFoundError, AttributeError) as error:
        reason = str(getattr(error, "proxy_base_exception", error))
        raise UserError(
            f"{source} names code that cannot be imported: {reason}. Use the code that started the "
            "run, in the same working directory (working_directory in environment.json)."
        ) from None
    except serialization.PyrefPolicyError as error:
        raise UserError(f"{source}: {error}") from None
    except (KeyError, TypeError, serialization.DeserializationError):
        config = None
    if not isinstance(config, fdl.Config):
        printed = isinstance(todays, dict) and "@" in todays
        hint = " --print json is for reading; load the config.json of a run directory." * printed
        raise UserError(f"{source} is not a config written by mtf.{hint}")
    return config
