"""Translates bindings to settings with a table; bindings without an equivalent become notes."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError, did_you_mean, nearest, suggestion
from mtf.cli.gin.reading import Binding, Bindings, Macro, Reference
from mtf.cli.gin.rows import ABSENT, NotTranslatedError, Row, Section
from mtf.config.types import Mismatch, convert, members, type_hints

_REQUIRED = "gin.REQUIRED"
_MISSPELLED = 0.85  # minimum similarity of a misspelled macro name to the correct name


@dataclasses.dataclass(frozen=True)
class Note:
    """A binding that was not translated, with the reason and whether docs/t5x.md covers it."""

    binding: Binding
    reason: str
    documented: bool

    def __str__(self) -> str:
        return f"{self.binding}: {self.reason}"


class Walk:
    """Collects the settings of a run from its bindings.

    Attributes:
      settings: a dict mapping config fields to values, and "parts" to the set of sections in use.
      notes: the bindings that were not translated, with the reasons.
      origins: a dict mapping each config field to the binding that set its value.
    """

    def __init__(self, bindings: Bindings, sections: Mapping[str, Section], job: type) -> None:
        self.bindings = bindings
        self.settings: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.origins: dict[str, Binding] = {}
        self._sections = sections
        self._job = job
        self._used: set[str] = set()
        self._missing: dict[str, str] = {}
        self._refusals: list[str] = []
        self._wrong: list[str] = []
        self._compared: list[tuple[Row, Binding, Any]] = []
        self._resolving: list[str] = []

    def section(self, name: str, configurable: str, scope: str = "") -> None:
        """Translates the bindings of a configurable according to the rows of a section."""
        section = self._sections[name]
        bound = self.bindings.of(configurable, scope)
        for parameter, binding in bound.items():
            self._used.add(binding.name)
            row = section.row(parameter)
            if row is None:
                hint = did_you_mean(parameter, [row.parameter for row in section.rows])
                self._note(binding, f"{configurable} has no parameter {parameter}.{hint}", False)
            elif not row.anything:
                self._translate(row, binding, scope)
        for row in section.rows:
            if row.parameter not in bound and row.default is not ABSENT and row.path is not None:
                self.settings.setdefault(row.path, row.default)

    def ignore(self, *prefixes: str) -> None:
        """Marks all bindings of configurables whose names start with any of `prefixes` as used."""
        for (_, configurable, _), binding in self.bindings.parameters.items():
            if configurable.startswith(prefixes):
                self._used.add(binding.name)

    def finish(self, skip_unknown: bool = False) -> None:
        """Adds notes about bindings that the run does not use.

        Raises UserError if a required value is missing or has the wrong type, if part of the run
        has no equivalent in mtf or, unless `skip_unknown`, if a binding was not understood.
        """
        for row, binding, value in self._compared:
            if self.settings.get(row.equals or "") != value:
                self._leave_out(row, binding, f"{row.note} (`{row.equals}`)")
        number = len(self._missing)
        problems = {
            f"{number} required {'value is' if number == 1 else 'values are'} missing; set each "
            "with --gin.NAME=VALUE (t5_mesh_transformer: --gin_param='NAME = VALUE'):": [
                f"{name} {why}" for name, why in self._missing.items()
            ],
            "mtf has no equivalent of this run:": self._refusals,
            "Wrong types:": [*dict.fromkeys(self._wrong)],
        }
        if not any(problems.values()):  # otherwise, some references have not been followed
            self._note_unused()
        problems["Not understood (--skip_all_gin_unknowns translates the other bindings):"] = [
            f"{note} ({note.binding.where})"
            for note in self.notes
            if not (note.documented or skip_unknown)
        ]
        found = ["\n  ".join([title, *lines]) for title, lines in problems.items() if lines]
        if found:
            raise UserError("\n".join(found))

    def _note_unused(self) -> None:
        """Adds notes about bindings that the run does not use."""
        for (scope, configurable, _), binding in self.bindings.parameters.items():
            if binding.name not in self._used and not binding.is_default:
                self._note_unused_parameter(binding, scope, configurable)
        referred = self.bindings.referred_macros()
        for name, binding in self.bindings.macros.items():
            if name in referred or binding.is_default:
                continue
            others = [each for each in self.bindings.macros if each != name]
            # Files may define unused macros, so only macros that look misspelled are reported.
            near = difflib.get_close_matches(name, referred, n=1, cutoff=_MISSPELLED)
            if binding.on_command_line or near:
                hint = f" Did you mean {near[0]}?" if near else did_you_mean(name, others)
                hint = hint or " Bind the parameter that takes this value."
                self._note(binding, f"no binding refers to %{name}.{hint}", False)

    def _note(self, binding: Binding, reason: str, documented: bool) -> None:
        note = Note(binding, reason, documented)
        if note not in self.notes:
            self.notes.append(note)

    def _refuse(self, binding: Binding, reason: str) -> None:
        self._refusals.append(f"{binding} ({binding.where}): {reason}.")

    def _leave_out(self, row: Row, binding: Binding, reason: str) -> None:
        """Refuses the run or adds a note, for a value without an equivalent."""
        if row.refused:
            self._refuse(binding, reason)
        else:
            self._note(binding, reason, documented=True)

    def _note_unused_parameter(self, binding: Binding, scope: str, configurable: str) -> None:
        """Adds a note about an unused binding, with a suggestion if its name looks misspelled."""
        sections = [section.name.rpartition("/") for section in self._sections.values()]
        # Names are compared without modules, because bindings may omit the module.
        short = {name.rpartition(".")[2]: name for _, _, name in sections}
        scopes = self.bindings.scopes() | {scope for scope, _, _ in sections}
        if configurable not in short.values() and not _is_optax(configurable):
            hint = suggestion(short[n] for n in nearest(configurable.rpartition(".")[2], short))
            self._note(binding, f"mtf does not know {configurable}.{hint}", False)
        elif scope not in scopes:
            hint = did_you_mean(scope, scopes)
            self._note(binding, f"mtf does not know the scope {scope}.{hint}", False)
        else:
            self._note(binding, "this run does not use this binding", not binding.on_command_line)

    def _translate(self, row: Row, binding: Binding, scope: str) -> None:
        try:
            value = self.resolve(binding.value, binding)
        except _MissingError as error:
            if not row.optional:
                self._missing.setdefault(*error.args)
            return
        if row.parts is not None and self._follow(row, row.parts, binding, value, scope):
            return
        if _is_in(value, row.fixed):
            return
        if row.equals is not None:
            self._compared.append((row, binding, value))
        elif row.path is not None:
            self._set(row, row.path, binding, value)
        elif row.refused or row.note:
            self._leave_out(row, binding, row.reason)
        else:
            self._note(binding, row.reason, documented=False)

    def _set(self, row: Row, path: str, binding: Binding, value: Any) -> None:
        if row.convert is not None:
            try:
                value = row.convert(value)
            except NotTranslatedError as error:
                self._leave_out(row, binding, str(error))
                return
            except (TypeError, ValueError):
                self._refuse(binding, f"mtf cannot convert {value!r}")
                return
        elif any(isinstance(each, Reference) for each in _flat(value)):
            self._refuse(
                binding, f"mtf has no equivalent of {value}; set {binding.name} to a literal"
            )
            return
        first = self.origins.setdefault(path, binding)
        if first is not binding and self.settings[path] != value:
            self._refuse(binding, f"mtf has one value for this and for {first} ({first.where})")
        self.settings[path] = value
        mismatches = []
        declared = [row.type] if row.type is not ABSENT else [*_types(self._job, path.split("."))]
        for each in declared:
            try:
                convert(value, each)
                return
            except Mismatch as mismatch:
                mismatches.append(mismatch)
        if mismatches:
            self._wrong.append(f"{binding} ({binding.where}): {mismatches[0]}")

    def _follow(
        self, row: Row, parts: Mapping[str, str], binding: Binding, value: Any, scope: str
    ) -> bool:
        """Translates the references in a value; returns False if a config field takes the value."""
        for each in _flat(value):
            if isinstance(each, Reference) and each.configurable in parts:
                name = parts[each.configurable]
                self.settings.setdefault("parts", set()).add(name)
                self.section(name, each.configurable, each.scope or scope)
            elif row.optax and isinstance(each, Reference) and _is_optax(each.configurable):
                self.settings[row.path or ""] = self._optax(each, binding, scope)
            elif row.path is not None and not row.optax:
                return False
            elif row.note:
                self._leave_out(row, binding, row.note)
            else:
                expected = " or ".join(f"@{name}" for name in parts)
                expected += " or an optimizer of optax" * row.optax
                self._refuse(binding, f"mtf has no equivalent of {each}; expected {expected}")
        return True

    def _optax(self, value: Any, binding: Binding, scope: str) -> Any:
        """Returns a value in which references to functions of optax are configs of them.

        T5X's `optimizers` has optax's optimizers under their own names; its `chain` takes a list.
        """
        if isinstance(value, list | tuple):
            return tuple(self._optax(each, binding, scope) for each in value)
        if not isinstance(value, Reference):
            return value
        function = getattr(
            importlib.import_module("optax"), value.configurable.split(".")[-1], None
        )
        if not (_is_optax(value.configurable) and value.called and inspect.isroutine(function)):
            self._refuse(binding, f"mtf has no equivalent of {value}; expected a function of optax")
            return None
        is_chain = value.configurable == "t5x.optimizers.chain"
        known = ["transformations"] if is_chain else [*inspect.signature(function).parameters]
        keywords = {}
        for name, bound in self.bindings.of(value.configurable, value.scope or scope).items():
            self._used.add(bound.name)
            if name in known:
                keywords[name] = self._optax(self.resolve(bound.value, bound), bound, scope)
            else:
                self._refuse(bound, f"{value.configurable} has no parameter {name}")
        if is_chain:
            return fdl.Config(function, *keywords.get("transformations", ()))
        return fdl.Config(function, **keywords)

    def resolve(self, value: Any, binding: Binding) -> Any:
        """Returns a value in which all macros are replaced, including macros in lists and dicts."""
        if isinstance(value, dict):
            return {self.resolve(k, binding): self.resolve(v, binding) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.resolve(item, binding) for item in value)
        if not isinstance(value, Macro):
            return value
        if value.name == _REQUIRED:
            raise _MissingError(binding.name, f"({binding.where})")
        found = self.bindings.macros.get(value.name)
        if found is None:
            hint = did_you_mean(value.name, self.bindings.macros)
            if value.name == "MODEL":
                hint = " Add a model's gin file, such as t5x/examples/t5/t5_1_1/base.gin."
            why = f"({binding.where}: {binding}), which is not defined.{hint}"
            raise _MissingError(value.name, why)
        if value.name in self._resolving:
            circle = " → ".join([*self._resolving, value.name])
            raise UserError(f"Macros refer to each other: {circle} ({found.where}).")
        self._resolving.append(value.name)
        try:
            return self.resolve(found.value, found)
        finally:
            self._resolving.pop()


class _MissingError(Exception):
    """Raised for a missing required value or an undefined macro, with its name and location."""


def _is_optax(configurable: str) -> bool:
    """Returns whether a configurable is a function of optax, or T5X's wrapper of one."""
    return configurable.startswith(("optax.", "t5x.optimizers."))


def _types(job: Any, path: list[str]) -> Iterator[Any]:
    """Yields the types declared for a field, which may differ between the classes of a union."""
    for member in members(job):
        if dataclasses.is_dataclass(member) and path[0] in type_hints(member):
            declared = type_hints(member)[path[0]]
            if len(path) == 1:
                yield declared
            else:
                yield from _types(declared, path[1:])


def _flat(value: Any) -> list[Any]:
    """Returns a flat list of the items of nested lists and the values of nested dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [item for each in value for item in _flat(each)]
    return [value]


def _is_in(value: Any, values: tuple[Any, ...]) -> bool:
    """Returns whether `values` contains an equal value of the same type, so True does not match 1.

    References are compared as text, without a trailing `()`.
    """
    if isinstance(value, Reference):
        value = str(value).removesuffix("()")
    return any(type(value) is type(each) and value == each for each in values)
