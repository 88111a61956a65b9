"""Decides which classes and functions a stored config may name.

A stored config comes from anywhere, so it may name only:

- the settings of mtf: dataclasses of the modules in `_SETTINGS`,
- the public functions of optax,
- the containers in `_STRUCTURE`, of which configs consist, and
- classes and functions of modules that the user has named in this process, for example with
  `my.py:recipe` on the command line, or of any module if the user trusts the run.

A name is that of an attribute of the module that defines it; names with dots are refused.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Collection, Iterable

import fiddle as fdl

from mtf.base.errors import UserError
from mtf.config import tree, types
from mtf.storage import AnyPath, as_path, is_remote

_SETTINGS = re.compile(
    r"mtf\.([a-z0-9_]+\.)+settings|mtf\.data\.tasks\.objectives|mtf\.data\.text\.vocabularies"
    r"|mtf\.training\.trackers\.libraries"
)
_OPTAX = re.compile(r"optax(\.\w+)*(?<!_test)")
_BUILTINS = (tuple, list, dict, set, frozenset, bytes, slice)
_FIDDLE = (fdl.Config, fdl.Partial, fdl.ArgFactory, fdl.BuildableTraverserMetadata)
_STRUCTURE = {
    *((each.__module__, each.__name__) for each in (*_BUILTINS, *_FIDDLE, type(fdl.NO_VALUE))),
    *(("fiddle", each.__name__) for each in _FIDDLE),
}
# No module of these packages is a module of the user.
_NEVER_FOREIGN = {*sys.stdlib_module_names, "mtf", "conversion", "fiddle", "optax"}

_named: set[str] = set()
_own_configs: list[fdl.Buildable] = []
_trusted: set[AnyPath] = set()


def name_module(module: str) -> None:
    """Allows stored configs to name a module, because the user has named it in this process."""
    _named.add(module)


def name_modules(config: fdl.Buildable) -> None:
    """Allows stored configs to name the modules of a config that the user has made."""
    _own_configs.append(config)  # Finding the modules takes milliseconds, and is seldom needed.


def own_modules(config: fdl.Buildable) -> set[str]:
    """Returns the modules of the user that a config names."""
    modules = _modules_in_fields(config)
    for leaf in tree.leaves(config):
        for value in leaf.value if isinstance(leaf.value, list | tuple) else (leaf.value,):
            if isinstance(value, type) or inspect.isroutine(value):
                modules.add(types.public_module(value.__module__, value.__qualname__))
    return {each for each in modules if each.partition(".")[0] not in _NEVER_FOREIGN}


def trust_runs(runs: Iterable[str]) -> None:
    """Allows the configs of run directories to name any module of the user."""
    for run in map(as_path, runs):
        if not (is_remote(run) or run.exists()):
            raise UserError(f"--trust {run}: there is no such run directory.")
        _trusted.add(run.resolve())


def check_names(names: Collection[tuple[str, str]], source: str, trust: bool = False) -> None:
    """Imports what the config in the file `source` names, as pairs of a module and a name in it.

    Raises UserError if it may not name it, unless `trust` allows it to name any module of the user,
    and ModuleNotFoundError or AttributeError if it does not exist.
    """
    own = {module for module, _ in names if module.partition(".")[0] not in _NEVER_FOREIGN}
    _check_modules(own, source, trust)
    for module, name in names:
        if not _is_allowed(module, name):
            raise UserError(
                f"{source} names {module}.{name}. A config may name only the settings of mtf, "
                "functions of optax, and classes and functions that a module of yours defines at "
                "its top level."
            )


def check_fields(config: fdl.Buildable, source: str, trust: bool = False) -> None:
    """Raises UserError if a field of a stored config names a module that would be imported."""
    _check_modules(_modules_in_fields(config), source, trust)


def _modules_in_fields(config: fdl.Buildable) -> set[str]:
    """Returns the modules in all fields with the metadata {"imports": "modules" or "functions"}."""
    modules: set[str] = set()
    for _, node in tree.components(config):
        for field, value in node.__arguments__.items():
            names = [value] if isinstance(value, str) else value
            kind = tree.field_metadata(node, field).get("imports")
            if kind == "functions" and isinstance(names, list | tuple):
                names = [str(name).rpartition(".")[0] for name in names]
            if kind is not None and isinstance(names, list | tuple):
                modules.update(map(str, names))
    return modules - {""}


def _check_modules(modules: set[str], source: str, trust: bool) -> None:
    run = as_path(source)
    run = run.parent if run.suffix == ".json" else run
    refused = sorted(modules.difference(_named, *map(own_modules, _own_configs)))
    if refused and not trust and run.resolve() not in _trusted:
        raise UserError(
            f"{source} names {', '.join(refused)}, which mtf does not define. Importing it would "
            f"run its code. If you trust this code, add --trust {run} to the command, or "
            "trust=True in Python."
        )


def _is_allowed(module: str, name: str) -> bool:
    """Imports the module and returns whether a stored config may name what is called `name`."""
    if (module, name) in _STRUCTURE:
        return True
    is_settings, is_optax = _SETTINGS.fullmatch(module), _OPTAX.fullmatch(module)
    is_own = module.partition(".")[0] not in _NEVER_FOREIGN
    if not (is_settings or is_optax or is_own) or "." in name:
        return False
    value = vars(importlib.import_module(module)).get(name)
    if value is None:
        raise AttributeError(f"the module {module} has no {name}")
    if not (isinstance(value, type) or inspect.isroutine(value)) or value.__qualname__ != name:
        return False
    if module not in (value.__module__, types.public_module(value.__module__, name)):
        return False
    if is_optax:
        return inspect.isroutine(value) and not name.startswith("_")
    return is_own or dataclasses.is_dataclass(value)
