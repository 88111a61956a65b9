"""Finds recipes, builders and fiddlers by name, lists recipes, and calls them with arguments."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
import sys
import traceback
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import fiddle as fdl

from mtf import siblings
from mtf.config import docstrings, provenance, tree, types
from mtf.errors import UserError, did_you_mean, nearest, suggestion

RECIPES = "recipes"

# An `@` that starts a value is no Python expression, so a name replaces it for the parser.
_ELEMENT = re.compile(r"(?<=[=\[(,\s])@(?=[^\W\d])")
_AT = "__component__."


def resolve(name: str) -> fdl.Config:
    """Calls the recipe `module.recipe(kw=…)` or `file.py:recipe(kw=…)`; UserError if it cannot."""
    what, arguments = split_call(name)
    config = _call(find_recipe(what), arguments, what)
    if not isinstance(config, fdl.Config):
        raise UserError(
            f"{what} returns a {type(config).__name__}. A recipe must return a fdl.Config "
            "of a job, for example: def my_recipe() -> fdl.Config[mtf.jobs.Train]."
        )
    return config


def make_component(text: str, declared: Any = Any) -> Any:
    """Returns the component that `dotted.builder(kw=…)` or `dotted.Class(kw=…)` creates.

    Calls only builders whose annotation says that they return a config of the `declared` type. If
    a function may be the value itself, or may make it when the job is built, it is not called
    (`types.is_value`, `types.makes_value`). Raises UserError or `types.Mismatch` for anything else.
    """
    name, arguments = split_call(text)
    builder = find(name, "builder")
    if types.is_value(builder, declared):
        given = _parse_arguments(builder, arguments, name, complete=False)
        return tree.complete(fdl.Partial(builder, **given)) if given else builder
    makes_value = types.makes_value(builder, declared)
    if not makes_value:
        types.check_builder(builder, name, declared)
    if isinstance(builder, type) or makes_value:
        # Fields without a default may still be set by a later override.
        given = _parse_arguments(builder, arguments, name, complete=False)
        return tree.complete(fdl.Config(builder, **given))
    made = _call(builder, arguments, name, tracked=False)
    if not isinstance(made, fdl.Buildable):
        raise UserError(
            f"{name} returns a {type(made).__name__}, although its annotation says a fdl.Config."
        )
    return tree.complete(made)


def apply_fiddler(text: str, config: fdl.Config) -> fdl.Config:
    """Returns the config as changed or replaced by the fiddler `name(kw=…)`."""
    name, arguments = split_call(text)
    dotted = name if "." in name else f"{RECIPES}.fiddlers.{name}"
    function = find_recipe(name) if ":" in name else find(dotted, "fiddler")
    if not callable(function):
        raise UserError(f"{name} is a {type(function).__name__}, not a fiddler (a function).")
    changed = _call(function, arguments, name, config)
    if changed is not None and not isinstance(changed, fdl.Config):
        raise UserError(
            f"{name} returns a {type(changed).__name__}. A fiddler must change its config in "
            "place and return None, or return a new fdl.Config."
        )
    return tree.complete(config if changed is None else changed)


def split_call(text: str) -> tuple[str, str]:
    """Splits `name(kw=1)` into `name` and `(kw=1)`, or `name` into `name` and ""."""
    name, bracket, rest = text.partition("(")
    return name.strip(), bracket + rest


def recipe_name(name: str) -> str:
    """Returns the last part of a recipe's dotted name."""
    return split_call(name)[0].rpartition(":")[2].rpartition(".")[2]


def _parse_arguments(
    function: Any, arguments: str, what: str, *, skip: int = 0, complete: bool = True
) -> dict[str, Any]:
    """Parses `(kw=literal, kw=@builder, …)` by the annotations of `function`.

    The first `skip` parameters are positional. `complete` requires all others without a default.
    """
    known = dict(list(inspect.signature(function).parameters.items())[skip:])
    hints = types.type_hints(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    parsed: dict[str, Any] = {}
    problems: list[str] = []
    for name, text in keywords(arguments, what).items():
        try:
            if name in known or takes_any:
                parsed[name] = parse_value(text, hints.get(name, Any))
            else:
                takes = f"it takes {', '.join(known)}" if known else "it takes no arguments"
                hint = did_you_mean(name, known)
                problems.append(f"{what} has no argument {name}; {takes}.{hint}")
        except (types.Mismatch, UserError) as error:
            problems.append(f"{what}: {name}={text}: {error}")
    if problems:
        raise UserError("\n".join(problems))
    missing = [
        f"{name} ({types.describe(hints.get(name, Any))})"
        for name, parameter in known.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in parsed
    ]
    if missing and complete:
        example = f"{what}({missing[0].split()[0]}=…)"
        raise UserError(f"{what} needs a value for {', '.join(missing)}. Write {example}")
    return parsed


def parse_value(text: str, declared: Any) -> Any:
    """Parses a literal, a bare word or `@builder(kw=…)`; raises Mismatch on a wrong type."""
    if text.startswith("@"):
        return types.convert(make_component(text[1:], declared), declared)
    if text.startswith(("[", "(")) and _ELEMENT.search(text):
        return types.convert(_parse_elements(text, declared), declared)
    return types.parse(text, declared)


def _parse_elements(text: str, declared: Any) -> list[Any]:
    """Parses `[@builder(kw=…), …]` or `(@builder(kw=…), …)`."""
    parsable = _ELEMENT.sub(_AT, text)
    try:
        parsed = ast.parse(parsable, mode="eval").body
    except SyntaxError:
        parsed = None
    if not isinstance(parsed, ast.List | ast.Tuple):
        raise types.Mismatch(
            f"expected {types.describe(declared)}; {text} is not a list. Write [@builder(…), …]."
        )
    elements: list[Any] = []
    for index, node in enumerate(parsed.elts):
        element = (ast.get_source_segment(parsable, node) or "").replace(_AT, "@")
        try:
            elements.append(parse_value(element, types.element_type(declared, elements, index)))
        except types.Mismatch as mismatch:
            raise types.Mismatch(f"at [{index}]: {mismatch}") from None
    return elements


def keywords(arguments: str, what: str) -> dict[str, str]:
    """Splits `(a=1, b=@x.y(c=2))` into {"a": "1", "b": "@x.y(c=2)"}."""
    if not arguments:
        return {}
    text = "f" + _ELEMENT.sub(_AT, arguments)
    try:
        parsed = ast.parse(text, mode="eval").body
    except SyntaxError:
        parsed = None
    if (
        not isinstance(parsed, ast.Call)
        or parsed.args
        or any(keyword.arg is None for keyword in parsed.keywords)
    ):
        raise UserError(
            f"{what}: {arguments} is not a list of keyword arguments. Write {what}(name=value)."
        )
    return {
        str(keyword.arg): (ast.get_source_segment(text, keyword.value) or "").replace(_AT, "@")
        for keyword in parsed.keywords
    }


def _call(function: Any, arguments: str, what: str, *positional: Any, tracked: bool = True) -> Any:
    """Calls a recipe, builder or fiddler; turns its exceptions into a UserError with a traceback.

    If `tracked`, the history of the values that it sets refers to lines of its file.
    """
    parsed = _parse_arguments(function, arguments, what, skip=len(positional))
    tracking = provenance.in_file_of(function) if tracked else contextlib.nullcontext()
    try:
        with tracking:
            return function(*positional, **parsed)
    except UserError as error:
        raise UserError(f"{what}: {error}") from None
    except Exception as error:
        raise UserError(_user_traceback(error, f"{what} fails:")) from None


def _user_traceback(error: BaseException, headline: str) -> str:
    """Formats an error without the frames of this package and of importlib."""
    own = (os.path.dirname(__file__), siblings.__file__)
    machinery = (*own, os.path.dirname(importlib.__file__), "<frozen")
    report = traceback.TracebackException.from_exception(error)
    kept = [frame for frame in report.stack if not frame.filename.startswith(machinery)]
    report.stack = traceback.StackSummary.from_list(kept)
    return f"{headline}\n{''.join(report.format(chain=False)).rstrip()}"


def find_recipe(name: str) -> Any:
    """Returns the recipe `package.module.name` or `file.py:name`."""
    in_file = ":" in name or name.endswith(".py")
    function = _find_in_file(name) if in_file else find(name, "recipe")
    if isinstance(function, ModuleType):
        inside = ", ".join(f"{name}.{recipe}" for recipe in _recipes_in(function))
        has = f"Its recipes are {inside}." if inside else "It has no recipes."
        raise UserError(f"{name} is a module, not a recipe. {has}")
    if not callable(function):
        raise UserError(f"{name} is a {type(function).__name__}, not a recipe.")
    return function


def find(dotted: str, kind: str) -> Any:
    """Imports `package.module.name`; the error messages call it a `kind` and suggest names."""
    parts = dotted.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UserError(f"{dotted!r} is not the name of a {kind}.{_hint(dotted, kind)}")
    found, depth = _import_prefix(parts)
    if found is None:
        raise UserError(f"There is no {kind} {dotted}.{_hint(dotted, kind)}")
    for part in parts[depth:]:
        if not _has(found, part):
            raise UserError(f"There is no {kind} {dotted}.{_hint(dotted, kind, found)}")
        _check_unambiguous(found, part, dotted)
        found = getattr(found, part)
    return found


def _has(found: Any, name: str) -> bool:
    try:
        return hasattr(found, name)
    except Exception as error:  # The lookup imports the user's module of the same name.
        headline = f"Importing your module {found.__name__} fails:"
        raise UserError(_user_traceback(error, headline)) from None


def _check_unambiguous(module: Any, name: str, dotted: str) -> None:
    """Refuses a name that both mtf's module and the user's module of the same name define."""
    file = getattr(module, "__file__", None)
    if not siblings.is_ours(file) or name not in vars(module):
        return
    package, _, inside = module.__name__.partition(".")
    own = siblings.own_file(package, inside)
    if own is None or not _defines(own, name):
        return
    ours = getattr(sys.modules.get(getattr(module, name).__module__), "__file__", file)
    raise UserError(
        f"{dotted} is defined twice. Use {_shown(own)}:{name} for yours or {ours}:{name} for mtf's."
    )


def _defines(file: Path, name: str) -> bool:
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in body)


def _shown(file: Path) -> str:
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else f".{os.sep}{relative}"


def _import_prefix(parts: list[str]) -> tuple[Any, int]:
    """Imports the longest prefix that is a module; returns the module and the prefix's length."""
    module, depth = None, 0
    for length in range(1, len(parts) + 1):
        if module is not None and length == len(parts) and _has(module, parts[-1]):
            break
        try:
            module, depth = _import(".".join(parts[:length])), length
        except ModuleNotFoundError:
            break
    return module, depth


def _import(name: str) -> Any:
    """Imports a module; raises ModuleNotFoundError if it does not exist, else a UserError."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise
        raise UserError(_user_traceback(error, f"Importing {name} fails:")) from None


def import_user_module(name: str, setting: str) -> None:
    """Imports a module from the working directory or Python's path.

    Raises UserError, which names `setting`, if it does not exist or fails.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"{setting}: {name!r} is not the name of a module, such as my.tasks")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # The command `mtf`, unlike `python -m mtf`, does not search it.
    try:
        importlib.import_module(name)
    except UserError as error:
        raise UserError(f"{setting}: importing {name} fails: {error}") from error
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise UserError(
                f"{setting}: there is no module {name} (no module named {missing}); expected a "
                f"module in {here} or on Python's path.{did_you_mean(name, _modules_here())}"
            ) from None
        headline = f"{setting}: importing {name} fails:"
        raise UserError(_user_traceback(error, headline)) from None


def _modules_here() -> list[str]:
    """Returns the names of the modules in the working directory and its folders."""
    files = [*Path().glob("*.py"), *Path().glob("*/*.py")]
    names = (".".join(file.with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in names]


def _hint(dotted: str, kind: str, inside: Any = None) -> str:
    """Suggests names for one that does not exist; `inside` is the module that was found."""
    last = dotted.rpartition(".")[2]
    prefix = getattr(inside, "__name__", "")
    if kind != "recipe":
        names = [name for name, _ in inspect.getmembers(inside, callable) if name[0] != "_"]
        return suggestion(f"{prefix}.{name}" for name in (nearest(last, names) if inside else ()))
    options = [listing.name for listing in list_recipes()]
    is_other = isinstance(inside, ModuleType) and prefix != RECIPES
    own = [f"{prefix}.{name}" for name in _recipes_in(inside)] if is_other else []
    # If the module exists, its own recipes come first.
    found = _nearest_by_last(last, own) or _nearest_by_last(last, options)
    hint = suggestion(found or nearest(dotted, [*options, *own]))
    return hint or " `python -m mtf.run --list` lists all recipes."


def _nearest_by_last(last: str, options: list[str]) -> list[str]:
    by_last = {recipe_name(option): option for option in reversed(options)}
    return [by_last[name] for name in nearest(last, by_last)]


def recipes_in_file(file: str) -> list[str]:
    """Returns the names of the recipes in a Python file."""
    return list(_recipes_in(_import_file(Path(file)))) if Path(file).is_file() else []


def _find_in_file(name: str) -> Any:
    file, _, function = name.partition(":")
    path = Path(file)
    if not path.is_file():
        there = map(str, path.parent.glob("*.py") if path.parent.is_dir() else ())
        raise UserError(f"There is no file {file}.{did_you_mean(file, there)}")
    module = _import_file(path)
    recipes = _recipes_in(module)
    if not function:
        inside = ", ".join(f"{file}:{recipe}" for recipe in recipes) or f"{file}:my_recipe"
        raise UserError(f"{name} is a file. Name a recipe in it, for example {inside}.")
    if not hasattr(module, function):
        options = list(recipes) or [n for n in vars(module) if not n.startswith("_")]
        near = nearest(function, options) or options[:3]
        hint = suggestion(f"{file}:{option}" for option in near)
        raise UserError(f"There is no recipe {function} in {file}.{hint}")
    return getattr(module, function)


def _import_file(path: Path) -> Any:
    """Imports a file as a module, with its folder on Python's path."""
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(siblings.module_name(path) or path.stem)
    except Exception as error:
        raise UserError(_user_traceback(error, f"Importing {path} fails:")) from None
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise UserError(
            f"{path} has the same name as another module, {module.__name__}. Rename the file."
        )
    return module


@dataclasses.dataclass(frozen=True)
class Listing:
    """A recipe or fiddler in the output of `--list`; `summary` is a sentence of its docstring."""

    name: str
    summary: str


def _recipes_in(module: Any) -> dict[str, Any]:
    """Returns a module's public functions that are annotated to return a fdl.Config, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and _returns_config(value)
    }


def _returns_config(function: Any) -> bool:
    declared = function.__annotations__.get("return")
    if isinstance(declared, str):
        if "Config" not in declared:
            return False
        declared = types.type_hints(function).get("return")
    origin = typing.get_origin(declared) or declared
    return isinstance(origin, type) and issubclass(origin, fdl.Config)


def list_recipes() -> list[Listing]:
    """Returns all recipes of mtf's and of the user's `recipes`, module by module.

    An exported recipe is listed without its module; a user's by its file, if mtf has the name.
    """
    try:
        package = _import(RECIPES)
    except ModuleNotFoundError:
        return []
    names = [module.name for module in pkgutil.iter_modules(package.__path__[:1])]
    ours = {name: f"{RECIPES}.{name}" for name in names if name[0] != "_"}
    names = siblings.own_modules(RECIPES)
    yours = {name: siblings.own_module_name(RECIPES, name) for name in names}
    has_top = siblings.own_file(RECIPES) is not None
    top = _import(siblings.own_module_name(RECIPES)) if has_top else None
    return _list_package(package, ours) + _list_package(top, yours)


def _list_package(package: Any, modules: dict[str, str]) -> list[Listing]:
    """Lists the recipes of modules (module name → import name) and of the package itself."""
    exported = _recipes_in(package) if package is not None else {}
    public = {id(function): name for name, function in exported.items()}
    found: list[Listing] = []
    for module_name, imported_as in modules.items():
        module = _import(imported_as)
        for name, function in _recipes_in(module).items():
            if function.__module__ == module.__name__:
                short = public.pop(id(function), None)
                place = (package, short) if short else (module, f"{module_name}.{name}")
                found.append(_listing(_free_name(*place), function))
    for name in public.values():
        function = exported[name]
        defined_here = function.__module__ == package.__name__
        exports = Path(package.__file__).name == "__init__.py"
        mine = package.__name__ == RECIPES or not siblings.is_ours(inspect.getfile(function))
        if defined_here or (exports and mine):
            found.append(_listing(_free_name(package, name), function))
    return found


def _free_name(module: Any, dotted: str) -> str:
    """Returns `recipes.DOTTED`, or `FILE:NAME` if that name is mtf's."""
    if not siblings.is_ours(module.__file__):
        inside, _, name = dotted.rpartition(".")
        ours = sys.modules.get(f"{RECIPES}.{inside}".removesuffix("."))
        if ours is not None and siblings.is_ours(ours.__file__) and name in vars(ours):
            return f"{_shown(Path(module.__file__))}:{name}"
    return f"{RECIPES}.{dotted}"


def list_fiddlers() -> list[Listing]:
    """Returns the fiddlers of mtf's and of the user's `recipes/fiddlers.py`."""
    name = f"{RECIPES}.fiddlers"
    own = siblings.own_file(RECIPES, "fiddlers")
    modules = [_import(name)]
    if own is not None:
        modules.append(_import(siblings.own_module_name(RECIPES, "fiddlers")))
    return [
        _listing(fiddler, function)
        for module in modules
        for fiddler, function in vars(module).items()
        if not fiddler.startswith("_") and inspect.isfunction(function) and _takes_config(function)
    ]


def _takes_config(function: Any) -> bool:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and "Config" in str(first.annotation)


def _listing(name: str, function: Any) -> Listing:
    return Listing(name, docstrings.read(function).summary)
