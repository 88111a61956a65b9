"""Finds and calls recipes, builders and fiddlers by name, and lists recipes and fiddlers."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import pkgutil
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import fiddle as fdl

from mtf.base.environment import hiding_file
from mtf.base.errors import UserError, did_you_mean, nearest, suggestion
from mtf.config import allowed, docstrings, provenance, tree, types

RECIPES = "recipes"

# `@name` is not a Python expression, so each `@` is replaced with `_AT` before parsing.
_ELEMENT = re.compile(r"(?<=[=\[(,\s])@(?=[^\W\d])")
_AT = "__component__."


def resolve(name: str, fiddlers: Iterable[str] = ()) -> fdl.Config:
    """Returns the config created by the recipe `module.recipe(kw=…)` or `file.py:recipe(kw=…)`.

    One of `fiddlers`, which will be applied to the config, may have an attribute `arguments`: a
    function that takes the name of a recipe and returns a dict of texts. They are used as arguments
    if none are given; otherwise, only those that the recipe requires are used.
    """
    what, arguments = split_call(name)
    recipe = find_recipe(what)
    for text in fiddlers:
        with contextlib.suppress(UserError):  # `apply_fiddler` reports a wrong name.
            fiddler = _find_fiddler(split_call(text)[0])
            if hasattr(fiddler, "arguments"):
                examples = fiddler.arguments(recipe_name(what))
                arguments = _completed(recipe, arguments, what, examples)
    config = _call(recipe, arguments, what)
    if not isinstance(config, fdl.Config):
        raise UserError(
            f"{what} returns a {type(config).__name__}. A recipe must return an fdl.Config "
            "of a job, for example: def my_recipe() -> fdl.Config[mtf.jobs.Train]."
        )
    return config


def make_component(text: str, declared: Any = Any) -> Any:
    """Returns the component that `dotted.builder(kw=…)` or `dotted.Class(kw=…)` describes.

    A function is called only if its return annotation is a config of the `declared` type. A
    function that is itself a valid value (`types.is_value`) is not called but returned. A function
    that returns a valid value (`types.makes_value`) is called later, when the job is built. Raises
    UserError or `types.Mismatch` for any other function.
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
        # A later override may still set fields that have no default.
        given = _parse_arguments(builder, arguments, name, complete=False)
        return tree.complete(fdl.Config(builder, **given))
    made = _call(builder, arguments, name, tracked=False)
    if not isinstance(made, fdl.Buildable):
        raise UserError(
            f"{name} returns a {type(made).__name__}, although it is annotated to return a config."
        )
    return tree.complete(made)


def apply_fiddler(text: str, config: fdl.Config) -> fdl.Config:
    """Applies the fiddler `name(kw=…)` to a config and returns the resulting config."""
    name, arguments = split_call(text)
    function = _find_fiddler(name)
    if not callable(function):
        raise UserError(
            f"{name} is a {type(function).__name__}, not a fiddler. A fiddler is a function."
        )
    changed = _call(function, arguments, name, config)
    if changed is not None and not isinstance(changed, fdl.Config):
        raise UserError(
            f"{name} returns a {type(changed).__name__}. A fiddler must change its config in "
            "place and return None, or return a new fdl.Config."
        )
    return tree.complete(config if changed is None else changed)


def _find_fiddler(name: str) -> Any:
    dotted = name if "." in name else f"{RECIPES}.fiddlers.{name}"
    return find_recipe(name) if ":" in name else find(dotted, "fiddler")


def split_call(text: str) -> tuple[str, str]:
    """Splits `name(kw=1)` into `name` and `(kw=1)`. The second part of a plain `name` is ""."""
    name, bracket, rest = text.partition("(")
    return name.strip(), bracket + rest


def recipe_name(name: str) -> str:
    """Returns the name of a recipe without its module, file and arguments."""
    return split_call(name)[0].rpartition(":")[2].rpartition(".")[2]


def with_argument(name: str, argument: str, value: str) -> str | None:
    """Returns the recipe `module.recipe(kw=…)` with another argument, or None if it takes none.

    Raises UserError if the recipe does not accept the value, which is given as text.
    """
    what, arguments = split_call(name)
    try:
        recipe = find_recipe(what)
    except UserError:
        return None
    if argument not in inspect.signature(recipe).parameters:
        return None
    _parse_arguments(recipe, f"({argument}={value})", what, complete=False)
    given = _keywords(arguments, what) | {argument: value}
    return f"{what}({', '.join(f'{key}={text}' for key, text in given.items())})"


def _parse_arguments(
    function: Any, arguments: str, what: str, *, skip: int = 0, complete: bool = True
) -> dict[str, Any]:
    """Parses `(kw=literal, kw=@builder, …)` according to the annotations of `function`.

    The first `skip` parameters, which are passed by position, are ignored. If `complete` is true,
    all other parameters that have no default are required.
    """
    known = dict(list(inspect.signature(function).parameters.items())[skip:])
    hints = types.type_hints(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    parsed: dict[str, Any] = {}
    problems: list[str] = []
    for name, text in _keywords(arguments, what).items():
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
    """Parses a literal, a bare word or `@builder(kw=…)`; raises Mismatch if the type is wrong."""
    if text.startswith("@"):
        return types.convert(make_component(text[1:], declared), declared)
    if text.startswith(("[", "(")) and _ELEMENT.search(text):
        return types.convert(_parse_elements(text, declared), declared)
    try:
        return types.parse(text, declared)
    except types.Mismatch:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+(\(.*\))?", text):
            raise
        would_work = ""
        with contextlib.suppress(UserError, types.Mismatch):  # such as optax.adam(1e-3)
            written = _with_names(text)
            make_component(written, declared)
            would_work = written
        if not would_work:
            raise
        raise types.Mismatch(f"a component begins with @. Write @{would_work}") from None


def _with_names(call: str) -> str:
    """Returns a call such as `optax.adam(1e-3)` with the names of its positional arguments."""
    name, _ = split_call(call)
    parsed, source_of = _parsed(call)
    if not isinstance(parsed, ast.Call):
        return name
    names = inspect.signature(find(name, "builder")).parameters
    given = [f"{each}={source_of(value)}" for each, value in zip(names, parsed.args, strict=False)]
    given += [f"{keyword.arg}={source_of(keyword.value)}" for keyword in parsed.keywords]
    return f"{name}({', '.join(given)})"


def _parse_elements(text: str, declared: Any) -> list[Any]:
    """Parses a list or tuple of components, such as `[@builder(kw=…), …]`."""
    parsed, source_of = _parsed(text)
    if not isinstance(parsed, ast.List | ast.Tuple):
        raise types.Mismatch(
            f"expected {types.describe(declared)}; {text} is not a list. Write [@builder(…), …]."
        )
    elements: list[Any] = []
    for index, node in enumerate(parsed.elts):
        element = types.element_type(declared, elements, index)
        try:
            elements.append(parse_value(source_of(node), element))
        except types.Mismatch as mismatch:
            raise types.Mismatch(f"at [{index}]: {mismatch}") from None
    return elements


def _completed(recipe: Any, arguments: str, what: str, examples: Mapping[str, str]) -> str:
    """Adds to the arguments of a recipe those of the `examples` that `resolve` uses."""
    known, given = inspect.signature(recipe).parameters, _keywords(arguments, what)
    used = {
        name: repr(value)
        for name, value in examples.items()
        if name in known and (not given or known[name].default is known[name].empty)
    }
    return f"({', '.join(f'{name}={text}' for name, text in (used | given).items())})"


def _keywords(arguments: str, what: str) -> dict[str, str]:
    """Splits arguments. For example, `(a=1, b=@x.y())` becomes {"a": "1", "b": "@x.y()"}."""
    parsed, source_of = _parsed(f"f{arguments or '()'}")
    if isinstance(parsed, ast.Call) and not parsed.args and all(k.arg for k in parsed.keywords):
        return {str(keyword.arg): source_of(keyword.value) for keyword in parsed.keywords}
    example = f"{what}(name=value)"
    with contextlib.suppress(UserError):
        example = _with_names(f"{what}{arguments}")
    raise UserError(f"{what}: {arguments} is not a list of keyword arguments. Write {example}")


def _parsed(text: str) -> tuple[ast.expr | None, Callable[[ast.expr], str]]:
    """Parses an expression that may contain components.

    Returns the parsed expression, or None if it is invalid, and a function that returns the source
    text of a node of this expression.
    """
    text = _ELEMENT.sub(_AT, text)
    try:
        parsed = ast.parse(text, mode="eval").body
    except SyntaxError:
        parsed = None
    return parsed, lambda node: (ast.get_source_segment(text, node) or "").replace(_AT, "@")


def _call(function: Any, arguments: str, what: str, *positional: Any, tracked: bool = True) -> Any:
    """Calls a recipe, builder or fiddler; re-raises any exception as a UserError.

    Unless the exception is a UserError, the new message contains its traceback. If `tracked` is
    true, the history of each value that the function sets names a line in the function's file.
    """
    parsed = _parse_arguments(function, arguments, what, skip=len(positional))
    tracking = provenance.in_file_of(function) if tracked else contextlib.nullcontext()
    try:
        with tracking:
            return function(*positional, **parsed)
    except UserError as error:  # `proxy_base_exception` lacks the context that fdl.build adds.
        text = getattr(error, "proxy_base_exception", error)
        raise UserError(f"{what}: {text}") from None
    except Exception as error:
        raise UserError(_user_traceback(error, f"{what} failed:")) from None


def _user_traceback(error: BaseException, headline: str) -> str:
    """Formats an error and its traceback, omitting frames in `mtf.config` and in importlib."""
    machinery = (os.path.dirname(__file__), os.path.dirname(importlib.__file__), "<frozen")
    report = traceback.TracebackException.from_exception(error)
    kept = [frame for frame in report.stack if not frame.filename.startswith(machinery)]
    report.stack = traceback.StackSummary.from_list(kept)
    return f"{headline}\n{''.join(report.format(chain=False)).rstrip()}"


def find_recipe(name: str) -> Any:
    """Returns the recipe function with the name `package.module.name` or `file.py:name`."""
    in_file = ":" in name or name.endswith(".py")
    function = _find_in_file(name) if in_file else find(name, "recipe")
    if isinstance(function, ModuleType):
        inside = ", ".join(f"{name}.{recipe}" for recipe in _recipes_in(function))
        has = f"Its recipes are {inside}." if inside else "It has no recipes."
        if name == RECIPES:
            has = "`python -m mtf.run --list` lists its recipes."
        raise UserError(f"{name} is a module, not a recipe. {has}")
    if not callable(function):
        raise UserError(f"{name} has the type {type(function).__name__}; it is not a recipe.")
    return function


def find(dotted: str, kind: str) -> Any:
    """Returns the object with a dotted name. Error messages state its `kind`, such as "recipe"."""
    parts = dotted.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UserError(f"{dotted!r} is not the name of a {kind}.{_hint(dotted, kind)}")
    found, depth = _import_prefix(parts)
    if found is None:
        raise UserError(f"There is no {kind} {dotted}.{_hint(dotted, kind)}")
    allowed.name_module(found.__name__)
    for part in parts[depth:]:
        if not hasattr(found, part):
            raise UserError(f"There is no {kind} {dotted}.{_hint(dotted, kind, found)}")
        found = getattr(found, part)
    return found


def _import_prefix(parts: list[str]) -> tuple[Any, int]:
    """Imports the longest prefix that is a module; returns (module, prefix length) or (None, 0)."""
    module, depth = None, 0
    for length in range(1, len(parts) + 1):
        if module is not None and length == len(parts) and hasattr(module, parts[-1]):
            break
        try:
            module, depth = _import(".".join(parts[:length])), length
        except ModuleNotFoundError:
            break
    return module, depth


def _import(name: str, setting: str = "") -> Any:
    """Imports and returns a module.

    Raises ModuleNotFoundError if the module does not exist, and a UserError, whose message starts
    with `setting`, if importing the module fails.
    """
    headline = f"{setting}importing {name} failed:"
    try:
        return importlib.import_module(name)
    except UserError as error:
        raise UserError(f"{headline} {error}") from error
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise
        raise UserError(_user_traceback(error, headline)) from None


def import_from_here() -> None:
    """Adds the working directory to the Python path, as `python -m mtf` does but `mtf` does not."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def import_user_module(name: str, setting: str) -> None:
    """Imports a module from the working directory or the Python path.

    Raises a UserError that names `setting` if the module does not exist or importing it fails.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(
            f"{setting}: {name!r} is not a module name; expected, for example, my.tasks"
        )
    import_from_here()
    try:
        _import(name, f"{setting}: ")
    except ModuleNotFoundError as error:
        files = [*Path().glob("*.py"), *Path().glob("*/*.py")]
        names = [".".join(file.with_suffix("").parts) for file in files]
        hint = did_you_mean(name, [each.removesuffix(".__init__") for each in names])
        raise UserError(
            f"{setting}: there is no module {name} (no module named {error.name}); expected a "
            f"module in {os.getcwd()} or on the Python path.{hint}"
        ) from None


def _hint(dotted: str, kind: str, inside: Any = None) -> str:
    """Returns a hint for an error message, such as names similar to `dotted`, or "".

    `inside` is the object that lacks the next part of `dotted`, or None if no module was found.
    """
    if dotted.startswith(f"{RECIPES}.") and (file := hiding_file(RECIPES)):
        return f" {file} hides mtf's package {RECIPES}; rename the file."
    last = dotted.rpartition(".")[2]
    prefix = getattr(inside, "__name__", "")
    if kind != "recipe":
        names = [name for name, _ in inspect.getmembers(inside, callable) if name[0] != "_"]
        return suggestion(f"{prefix}.{name}" for name in (nearest(last, names) if inside else ()))
    options = [listing.name for listing in list_recipes()]
    is_other = isinstance(inside, ModuleType) and prefix != RECIPES
    here = [f"{prefix}.{name}" for name in _recipes_in(inside)] if is_other else []
    # If the module exists, suggest recipes from it first.
    found = _nearest_by_last(last, here) or _nearest_by_last(last, options)
    hint = suggestion(found or nearest(dotted, [*options, *here]))
    return hint or " `python -m mtf.run --list` lists all recipes."


def _nearest_by_last(last: str, options: list[str]) -> list[str]:
    by_last = {recipe_name(option): option for option in reversed(options)}
    return [by_last[name] for name in nearest(last, by_last)]


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
        options = list(recipes) or [n for n, x in vars(module).items() if inspect.isfunction(x)]
        near = nearest(function, options) or options[:3]
        hint = suggestion(f"{file}:{option}" for option in near)
        raise UserError(f"There is no recipe {function} in {file}.{hint}")
    return getattr(module, function)


def _import_file(path: Path) -> Any:
    """Imports a file as a module and adds its directory to the Python path."""
    folder, name = path.parent.resolve(), path.stem
    if folder.name == RECIPES:  # The file belongs to the package `recipes`.
        folder, name = folder.parent, f"{RECIPES}.{name}".removesuffix(".__init__")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise UserError(_user_traceback(error, f"Importing {path} failed:")) from None
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise UserError(
            f"{path} has the same name as another module, {module.__name__}. Rename the file."
        )
    allowed.name_module(name)
    return module


class Listing(NamedTuple):
    """The name of a recipe or fiddler, and the summary from its docstring, as shown by `--list`."""

    name: str
    summary: str


def _recipes_in(module: Any) -> dict[str, Any]:
    """Returns a dict of a module's public functions that are annotated to return an fdl.Config."""
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
    """Returns the recipes in the package `recipes`, module by module.

    A recipe that the package itself exports is listed without the name of its module.
    """
    package = _import(RECIPES)
    exported = {id(each): f"{RECIPES}.{name}" for name, each in _recipes_in(package).items()}
    inside = [each.name for each in pkgutil.iter_modules(getattr(package, "__path__", ()))]
    modules = [package, *(_import(f"{RECIPES}.{name}") for name in inside if name[0] != "_")]
    return [
        Listing(exported.get(id(each), f"{module.__name__}.{name}"), docstrings.read(each).summary)
        for module in modules
        for name, each in _recipes_in(module).items()
        if each.__module__ == module.__name__
    ]


def list_fiddlers() -> list[Listing]:
    """Returns the fiddlers in the module `recipes.fiddlers`."""
    name = f"{RECIPES}.fiddlers"
    try:
        functions = vars(_import(name))
    except ModuleNotFoundError:
        return []
    return [
        Listing(fiddler, docstrings.read(function).summary)
        for fiddler, function in functions.items()
        if not fiddler.startswith("_") and inspect.isfunction(function) and _is_fiddler(function)
    ]


def _is_fiddler(function: Any) -> bool:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and "Config" in str(first.annotation)
