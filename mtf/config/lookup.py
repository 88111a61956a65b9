"""Finding things by name: recipes, builders, fiddlers."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import traceback
import types as python_types
import typing
from pathlib import Path
from typing import Any

import fiddle as fdl

from mtf import siblings
from mtf.config import provenance, types, values
from mtf.errors import UserError, nearest

RECIPES = "recipes"


def find_recipe(name: str) -> tuple[Any, str]:
    """Returns the recipe function and the text of its arguments, without calling it."""
    dotted, arguments = values.split_call(name)
    if not dotted:
        raise UserError(f"{name!r} names no recipe.{_recipe_hint('')}")
    if ":" in dotted or dotted.endswith(".py"):
        function = _find_in_file(dotted)
    else:
        function = find(dotted, "recipe")
    if not callable(function) or isinstance(function, python_types.ModuleType):
        if isinstance(function, python_types.ModuleType):
            inside = [f"{dotted}.{recipe}" for recipe in recipes_in(function)]
            raise UserError(
                f"{dotted} is a module, not a recipe. "
                + (f"It has {', '.join(inside)}." if inside else "It has no recipes.")
            )
        raise UserError(f"{dotted} is a {type(function).__name__}, not a recipe.")
    return function, arguments


def recipe_name(name: str) -> str:
    """Returns the last part of a recipe's name, for the name of a run directory."""
    dotted = values.split_call(name)[0]
    return dotted.rpartition(":")[2].rpartition(".")[2]


def find(dotted: str, kind: str) -> Any:
    """Returns what a dotted name stands for, importing modules as far as needed.

    Args:
      dotted: as in `package.module.name`.
      kind: "recipe", "builder" or "fiddler", for messages.

    Raises:
      UserError: there is nothing of that name, with the nearest; or importing it fails.
    """
    parts = dotted.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UserError(f"{dotted!r} is not the name of a {kind}.{_hint(dotted, kind, None)}")
    found, depth = _import_prefix(parts)
    if found is None:
        raise UserError(f"There is no {kind} {dotted}.{_hint(dotted, kind, None)}")
    for part in parts[depth:]:
        if not _has(found, part):
            raise UserError(f"There is no {kind} {dotted}.{_hint(dotted, kind, found)}")
        _check_unambiguous(found, part, dotted)
        found = getattr(found, part)
    return found


def _has(found: Any, name: str) -> bool:
    try:
        return hasattr(found, name)
    except Exception as error:  # Asked for what mtf's own module lacks, yours is imported.
        raise UserError(
            _user_traceback(error, f"Importing your part of {found.__name__} fails:")
        ) from None


def _check_unambiguous(module: Any, name: str, dotted: str) -> None:
    """Refuses a name that both mtf's own module and a file of the user's have.

    The user's file is not run for that: a mistake in it is no reason not to run mtf's recipes.
    """
    file = getattr(module, "__file__", None)
    if not siblings.is_ours(file) or name not in vars(module):
        return
    package, _, inside = module.__name__.partition(".")
    own = siblings.own_file(package, inside)
    if own is None or not _defines(own, name):
        return
    ours = getattr(sys.modules.get(getattr(module, name).__module__), "__file__", file)
    raise UserError(
        f"{dotted} is in two places. For yours write {_shown(own)}:{name}, for mtf's {ours}:{name}"
    )


def _defines(file: Path, name: str) -> bool:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def _shown(file: Path) -> str:
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else f".{os.sep}{relative}"


def _import_prefix(parts: list[str]) -> tuple[Any, int]:
    module, depth = None, 0
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        if module is not None and length == len(parts) and _has(module, parts[-1]):
            break
        try:
            module, depth = _import_user_module(name), length
        except ModuleNotFoundError:
            break
    return module, depth


def _import_user_module(name: str) -> Any:
    """Imports a module; only that it does not exist itself stays a ModuleNotFoundError."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise
        raise UserError(_user_traceback(error, f"Importing {name} fails:")) from None


def _hint(dotted: str, kind: str, inside: Any) -> str:
    if kind == "recipe":
        return _recipe_hint(dotted, inside)
    if inside is None:
        return ""
    prefix = getattr(inside, "__name__", "")
    names = [name for name, _ in inspect.getmembers(inside, callable) if not name.startswith("_")]
    found = nearest(dotted.rpartition(".")[2], names)
    return f" Did you mean {', '.join(f'{prefix}.{name}' for name in found)}?" if found else ""


def _recipe_hint(dotted: str, inside: Any = None) -> str:
    options = [listing.name for listing in list_recipes()]
    own: list[str] = []
    if isinstance(inside, python_types.ModuleType) and inside.__name__ != RECIPES:
        own = [f"{inside.__name__}.{name}" for name in recipes_in(inside)]
    last = dotted.rpartition(".")[2]
    # Where the module is right, what it has comes first.
    found = _nearest_by_last(last, own) or _nearest_by_last(last, options)
    found = found or nearest(dotted, [*options, *own])
    if found:
        return f" Did you mean {', '.join(found)}?"
    return " `python -m mtf.run --list` shows all recipes."


def _nearest_by_last(last: str, options: list[str]) -> list[str]:
    by_last = {recipe_name(option): option for option in reversed(options)}
    return [by_last[name] for name in nearest(last, by_last)]


def _find_in_file(name: str) -> Any:
    file, _, function = name.partition(":")
    path = Path(file)
    if not path.is_file():
        there = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = nearest(file, there)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise UserError(f"There is no file {file}.{hint}")
    module = _import_file(path)
    if not function:
        inside = [f"{file}:{recipe}" for recipe in recipes_in(module)]
        raise UserError(
            f"{name} names a file. Name the recipe in it too, as in "
            f"{', '.join(inside) or file + ':my_recipe'}."
        )
    if not hasattr(module, function):
        options = recipes_in(module) or [n for n in vars(module) if not n.startswith("_")]
        near = nearest(function, options) or options[:3]
        hint = f" Did you mean {', '.join(f'{file}:{n}' for n in near)}?" if near else ""
        raise UserError(f"There is no recipe {function} in {file}.{hint}")
    return getattr(module, function)


def _import_file(path: Path) -> Any:
    """Imports a file as a module of its own name, as Python would from the file's folder."""
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(siblings.module_name(path) or path.stem)
    except Exception as error:
        raise UserError(_user_traceback(error, f"Importing {path} fails:")) from None
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise UserError(
            f"{path} has the name of another module ({module.__name__}); rename the file."
        )
    return module


def call_user_code(
    function: Any, arguments: dict[str, Any], what: str, *positional: Any, tracked: bool = True
) -> Any:
    """Calls a recipe, builder or fiddler; a failure inside is a UserError with their traceback.

    Args:
      function: what to call.
      arguments: by name.
      what: its name, for messages.
      positional: before them.
      tracked: values that it sets are said to come from its lines.
    """
    tracking = provenance.in_file_of(function) if tracked else contextlib.nullcontext()
    try:
        with tracking:
            return function(*positional, **arguments)
    except UserError as error:
        raise UserError(f"{what}: {error}") from None
    except Exception as error:
        raise UserError(_user_traceback(error, f"{what} fails:")) from None


def _user_traceback(error: BaseException, headline: str) -> str:
    """Formats an error with the frames of the user's files only."""
    own = (os.path.dirname(__file__), siblings.__file__)
    machinery = (*own, os.path.dirname(importlib.__file__), "<frozen")
    report = traceback.TracebackException.from_exception(error)
    kept = [frame for frame in report.stack if not frame.filename.startswith(machinery)]
    report.stack = traceback.StackSummary.from_list(kept)
    return f"{headline}\n{''.join(report.format(chain=False)).rstrip()}"


@dataclasses.dataclass(frozen=True)
class Listing:
    """A recipe as `--list` shows it: its name, typed arguments and docstring's first line."""

    name: str
    arguments: str
    summary: str


def recipes_in(module: Any) -> list[str]:
    """Returns the names of a module's functions that are declared to return a fdl.Config."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and _returns_config(value)
    ]


def _returns_config(function: Any) -> bool:
    declared = function.__annotations__.get("return")
    if isinstance(declared, str):
        if "Config" not in declared:
            return False
        declared = types.type_hints(function).get("return")
    origin = typing.get_origin(declared) or declared
    return isinstance(origin, type) and issubclass(origin, fdl.Config)


def list_recipes() -> list[Listing]:
    """Returns every recipe of mtf's package `recipes` and of the user's, in the order of modules.

    A recipe that the package itself exports is named without its module. One of the user's whose
    name is taken is named by its file.
    """
    try:
        package = _import_user_module(RECIPES)
    except ModuleNotFoundError:
        return []
    folder = package.__path__[:1]
    names = [m.name for m in pkgutil.iter_modules(folder) if m.name[0] != "_"]
    found = _list_package(package, [(n, _import_user_module(f"{RECIPES}.{n}")) for n in names])
    top = None
    if siblings.own_file(RECIPES) is not None:
        top = _import_user_module(siblings.own_module_name(RECIPES))
    own = [
        (name, _import_user_module(siblings.own_module_name(RECIPES, name)))
        for name in siblings.own_modules(RECIPES)
    ]
    return found + _list_package(top, own)


def _list_package(package: Any, modules: list[tuple[str, Any]]) -> list[Listing]:
    exported = {id(getattr(package, name)): name for name in recipes_in(package)} if package else {}
    found: list[Listing] = []
    for module_name, module in modules:
        for name in recipes_in(module):
            function = getattr(module, name)
            if function.__module__ != module.__name__:
                continue
            public = exported.pop(id(function), None)
            own = _free_name(module, f"{module_name}.{name}", name)
            found.append(_listing(_free_name(package, public, public) if public else own, function))
    for name in exported.values():
        function = getattr(package, name)
        defined_here = function.__module__ == package.__name__
        exports = Path(package.__file__).name == "__init__.py"
        mine = package.__name__ == RECIPES or not siblings.is_ours(inspect.getfile(function))
        if defined_here or (exports and mine):
            found.append(_listing(_free_name(package, name, name), function))
    return found


def _free_name(module: Any, dotted: str, name: str) -> str:
    """Returns `recipes.DOTTED`, or names the file where mtf's own module has such a recipe too."""
    if not siblings.is_ours(module.__file__):
        inside = dotted.rpartition(".")[0]
        ours = sys.modules.get(f"{RECIPES}.{inside}".removesuffix("."))
        if ours is not None and siblings.is_ours(ours.__file__) and name in vars(ours):
            return f"{_shown(Path(module.__file__))}:{name}"
    return f"{RECIPES}.{dotted}"


def _listing(name: str, function: Any) -> Listing:
    hints = types.type_hints(function)
    shown: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        text = f"{parameter.name}: {types.describe(hints.get(parameter.name, Any))}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        shown.append(text)
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    return Listing(name, ", ".join(shown), summary)
