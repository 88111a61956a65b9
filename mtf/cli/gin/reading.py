"""Parses gin files with gin-config but does not resolve configurables or macros.

The modules that a gin file imports are not loaded, so T5X and TensorFlow need not be installed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtf.base.errors import UserError
from mtf.base.extras import import_extra
from mtf.storage import as_path, has_scheme

_COMMAND_LINE = "command line"
_BARE_TEXT = re.compile(r"[A-Za-z_/~.][\w/:.+~-]*")  # such as gs://bucket/run
_ADDRESS = re.compile(r": <ast\.\w+ object at 0x[0-9a-f]+>")  # from `ast.literal_eval` messages
_DEFAULTS = "defaults of the program"


@dataclasses.dataclass(frozen=True)
class Reference:
    """A reference `@scope/configurable` or, if `called`, `@scope/configurable()`."""

    scope: str
    configurable: str  # the canonical name if known, otherwise the name with aliases resolved
    called: bool

    def __repr__(self) -> str:
        scope = f"{self.scope}/" if self.scope else ""
        return f"@{scope}{self.configurable}{'()' if self.called else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
    """A reference `%NAME` to the macro NAME."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Binding:
    """A binding `scope/configurable.parameter = value` or `name = value`, and its location."""

    name: str
    value: Any
    where: str

    @property
    def on_command_line(self) -> bool:
        """Whether the binding comes from the command line."""
        return self.where == _COMMAND_LINE

    @property
    def is_default(self) -> bool:
        """Whether the binding is one of the program's defaults."""
        return self.where.startswith(_DEFAULTS)

    def __str__(self) -> str:
        return f"{self.name} = {self.value!r}"


@dataclasses.dataclass
class Bindings:
    """The bindings that remain after all includes and overrides.

    Attributes:
      macros: a dict mapping the names of macros to their bindings.
      parameters: a dict mapping (scope, configurable, parameter) to a binding.
      modules: the modules that the files import, except gin's own modules.
      network: the module of the network, such as `t5x.examples.scalable_t5.network`.
      files: the files in the order in which they were read.
    """

    macros: dict[str, Binding] = dataclasses.field(default_factory=dict)
    parameters: dict[tuple[str, str, str], Binding] = dataclasses.field(default_factory=dict)
    modules: list[str] = dataclasses.field(default_factory=list)
    network: str | None = None
    files: list[str] = dataclasses.field(default_factory=list)

    def of(self, configurable: str, scope: str = "") -> dict[str, Binding]:
        """Returns a dict mapping each parameter of a configurable in a scope to its binding.

        Bindings in inner scopes take precedence.
        """
        parts = scope.split("/") if scope else []
        found = {}
        for active in ("/".join(parts[:n]) for n in range(len(parts) + 1)):
            for (where, name, parameter), binding in self.parameters.items():
                if (where, name) == (active, configurable):
                    found[parameter] = binding
        return found

    def scopes(self) -> set[str]:
        """Returns the scopes of all references, including prefixes and components of the scopes."""
        scopes = {""}
        for value in self._values():
            if isinstance(value, Reference) and value.scope:
                parts = value.scope.split("/")
                scopes |= {"/".join(parts[:n]) for n in range(1, len(parts) + 1)} | {*parts}
        return scopes

    def referred_macros(self) -> set[str]:
        """Returns the names of the macros to which values refer."""
        return {value.name for value in self._values() if isinstance(value, Macro)}

    def _values(self) -> Iterator[Any]:
        """Yields all values, including the items of lists and dicts."""
        left = [each.value for each in (*self.macros.values(), *self.parameters.values())]
        while left:
            value = left.pop()
            if isinstance(value, list | tuple):
                left += value
            elif isinstance(value, dict):
                left += [*value, *value.values()]
            else:
                yield value


def read(
    files: Sequence[str],
    arguments: Sequence[str],
    search_paths: Sequence[str],
    known: Mapping[str, str],
    defaults: str = "",
) -> Bindings:
    """Reads gin files and then command-line bindings. Later bindings override earlier ones.

    Args:
      files: the gin files. Relative paths of files and includes are searched for in the current
        directory, `search_paths`, the packages t5x and t5, and the folders above an including file.
      arguments: `NAME=VALUE` bindings from the command line of T5X or t5_mesh_transformer.
      search_paths: the directories that are searched for files.
      known: a dict mapping each valid name of a configurable to its canonical name.
      defaults: gin text with the program's default bindings, which is read first.

    Raises UserError if a file does not exist or is not valid gin.
    """
    reader = _Reader(search_paths, known)
    reader.parse(defaults, _DEFAULTS, None)
    for file in files:
        reader.include(file, None)
    for argument in arguments:
        reader.parse(argument, _COMMAND_LINE, None)
    return reader.bindings


class _Reader:
    def __init__(self, search_paths: Sequence[str], known: Mapping[str, str]) -> None:
        self._parser = import_extra("gin.config_parser", "Reading gin files", "gin")
        self._search_paths = search_paths
        self._known = known
        self._aliases: dict[str, str] = {}
        self._open: list[str] = []
        self.bindings = Bindings()

    def include(self, name: str, parent: Path | None) -> None:
        """Reads a file; `name` is its path or its name relative to one of the search paths."""
        tried = list(self._places(name, parent))
        path = next((path for path in tried if as_path(path).is_file()), None)
        if path is None:
            by = "" if parent is None else f", which {parent} includes,"
            folder = next((path for path in tried if as_path(path).is_dir()), None)
            if folder is not None:
                raise UserError(f"{folder}{by} is a folder; expected a gin file.")
            listed = "".join(f"\n  {each}" for each in tried)
            raise UserError(
                f"The gin file {name}{by} does not exist. mtf looked for:{listed}\nTo search "
                "another folder, pass --gin_search_paths=FOLDER."
            )
        if path in self._open:
            raise UserError(f"Gin files include each other: {' → '.join([*self._open, path])}.")
        self._open.append(path)
        self.bindings.files.append(path)
        try:
            text = as_path(path).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a gin file: it is not text ({error}).") from error
        self.parse(text, path, None if has_scheme(path) else Path(path))
        self._open.pop()

    def _places(self, name: str, parent: Path | None) -> Iterable[str]:
        if has_scheme(name) or Path(name).is_absolute():
            return [name]
        places = [name, *(f"{folder.rstrip('/')}/{name}" for folder in self._search_paths)]
        places += [str(folder / name) for folder in _package_folders()]
        if parent is not None:
            places += [str(folder / name) for folder in parent.absolute().parents[:-1]]
        return list(dict.fromkeys(places))

    def parse(self, text: str, where: str, path: Path | None) -> None:
        """Parses gin text and adds its statements to the bindings."""
        aliases: dict[str, str] = {}
        stream = io.StringIO(text)
        setattr(stream, "name", where)  # noqa: B010
        try:
            parser = self._parser.ConfigParser(stream, _delegate(self, aliases))
            for statement in parser:
                self._add(statement, aliases, where, path)
        except (SyntaxError, tokenize.TokenError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(_syntax_problem(error, text, where)) from error

    def _add(self, statement: Any, aliases: dict[str, str], where: str, path: Path | None) -> None:
        if isinstance(statement, self._parser.IncludeStatement):
            self.include(statement.filename, path)
        elif isinstance(statement, self._parser.ImportStatement):
            if statement.module.startswith("__gin__"):
                return
            aliases[statement.bound_name()] = statement.partial_path()
            if statement.alias or statement.is_from:
                aliases[statement.bound_name()] = statement.module
            self._aliases |= aliases
            if statement.module not in self.bindings.modules:
                self.bindings.modules.append(statement.module)
        elif isinstance(statement, self._parser.BindingStatement):
            self._bind(statement, aliases, where)

    def _bind(self, statement: Any, aliases: Mapping[str, str], where: str) -> None:
        scope = f"{statement.scope}/" if statement.scope else ""
        place = where if where == _COMMAND_LINE else f"{where}:{statement.location.line_num}"
        # `NAME/macro.value = VALUE` is gin's long form of `NAME = VALUE`.
        is_long = (statement.selector, statement.arg_name) == ("macro", "value")
        if is_long or not statement.arg_name:
            name = statement.scope if is_long else f"{scope}{statement.selector}"
            self.bindings.macros[name] = Binding(name, statement.value, place)
            return
        configurable = self.canonical(statement.selector, aliases)
        name = f"{scope}{configurable}.{statement.arg_name}"
        key = (statement.scope, configurable, statement.arg_name)
        self.bindings.parameters[key] = Binding(name, statement.value, place)

    def canonical(self, selector: str, aliases: Mapping[str, str]) -> str:
        """Returns the canonical name of a configurable, resolving import aliases."""
        first, dot, rest = selector.partition(".")
        names = [selector]
        if dot and first in aliases:
            names = [f"{aliases[first]}.{rest}"]
        elif dot and first in self._aliases:
            names.insert(0, f"{self._aliases[first]}.{rest}")
        found = next((self._known[name] for name in names if name in self._known), names[0])
        if found == "network.Transformer":
            self.bindings.network = names[0].rpartition(".")[0]
        return found


def _delegate(reader: _Reader, aliases: Mapping[str, str]) -> Any:
    from gin.config_parser import ParserDelegate

    class Delegate(ParserDelegate):
        """Creates a `Reference` for each `@NAME` and a `Macro` for each `%NAME`."""

        def configurable_reference(self, name: str, evaluate: bool) -> Reference | Macro:
            scope, _, selector = name.rpartition("/")
            if selector == "macro" and evaluate:  # gin's long form of %NAME
                return Macro(scope)
            return Reference(scope, reader.canonical(selector, aliases), evaluate)

        def macro(self, name: str) -> Macro:
            return Macro(name)

    return Delegate()


def _package_folders() -> list[Path]:
    """Returns the gin folders of the packages t5x and t5, if installed; imports neither."""
    folders = []
    for package, inside in (("t5x", ".."), ("t5", "models/gin")):
        found = importlib.util.find_spec(package)
        for folder in [] if found is None else found.submodule_search_locations or []:
            folders.append((Path(folder) / inside).resolve())
    return folders


def _syntax_problem(error: Exception, text: str, where: str) -> str:
    """Returns an error message that contains the file, the line and the gin parser's reason."""
    name, _, value = map(str.strip, text.partition("="))
    if where == _COMMAND_LINE and _BARE_TEXT.fullmatch(value):
        return (
            f"{where} is not valid gin: {text}. Strings need quotes inside the shell's quotes: "
            f"{name}=\"'{value}'\"."
        )
    if isinstance(error, SyntaxError):
        line, reason = error.lineno, error.msg
    elif isinstance(error, tokenize.TokenError):
        reason, (line, _) = error.args
    else:
        line, reason = None, str(error)
    place = where if line is None or where == _COMMAND_LINE else f"{where}:{line}"
    lines = text.splitlines()
    shown = lines[line - 1] if line is not None and 0 < line <= len(lines) else text.strip()
    reason = _ADDRESS.sub("", " ".join(str(reason).split())).rstrip(".")
    return f"{place} is not valid gin: {reason}.\n  {shown.strip()}"
