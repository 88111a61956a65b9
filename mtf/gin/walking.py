"""Applies the tables to the bindings: what a run uses becomes settings, all else notes."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from mtf.errors import UserError, did_you_mean, nearest, suggestion
from mtf.gin.checking import check_types
from mtf.gin.reading import Binding, Bindings, Macro, Reference
from mtf.gin.rows import ABSENT, NotTranslatedError, Row, Section

_REQUIRED = "gin.REQUIRED"
_MISSPELLED = 0.85  # similarity of a misspelled macro's name to the right one


@dataclasses.dataclass(frozen=True)
class Note:
    """A binding that was not translated, and why; `documented` if docs/t5x.md has the reason."""

    binding: Binding
    reason: str
    documented: bool

    def __str__(self) -> str:
        return f"{self.binding}: {self.reason}"


class Walk:
    """The settings of a run, collected from its bindings.

    Attributes:
      settings: field of the config → value.
      notes: bindings that were not translated.
      origins: field of the config → binding that its value comes from.
    """

    def __init__(self, bindings: Bindings, sections: Mapping[str, Section]) -> None:
        self.bindings = bindings
        self.settings: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.origins: dict[str, Binding] = {}
        self._sections = sections
        self._used: set[str] = set()
        self._macros: set[str] = set()
        self._missing: dict[str, str] = {}
        self._refusals: list[str] = []
        self._compared: list[tuple[Row, Binding, Any]] = []
        self._resolving: list[str] = []

    def section(self, name: str, configurable: str, scope: str = "") -> None:
        """Translates the parameters of a configurable in the role of a section."""
        section = self._sections[name]
        bound = self.bindings.of(configurable, scope)
        for parameter, binding in bound.items():
            self._used.add(binding.name)
            row = section.row(parameter)
            if row is None:
                hint = did_you_mean(parameter, [row.parameter for row in section.rows])
                self.note(binding, f"{configurable} has no parameter {parameter}.{hint}", False)
            else:
                self._row(row, binding, scope)
        for row in section.rows:
            if row.parameter not in bound and row.default is not ABSENT and row.path is not None:
                self.settings.setdefault(row.path, row.default)

    def not_understood(self) -> str:
        """Returns lines that name the bindings that are not understood; "" if there are none."""
        lines = [f"\n  {n} ({n.binding.where})" for n in self.notes if not n.documented]
        return "".join(["\nNot understood:", *lines]) if lines else ""

    def forget(self, configurable: str) -> None:
        """Removes the notes on the parameters of a configurable, which were translated."""
        names = {binding.name for binding in self.bindings.of(configurable).values()}
        self.notes = [note for note in self.notes if note.binding.name not in names]

    def note(self, binding: Binding, reason: str, documented: bool) -> None:
        """Adds a binding that is not translated."""
        note = Note(binding, reason, documented)
        if note not in self.notes:
            self.notes.append(note)

    def use(self, *prefixes: str) -> None:
        """Marks the bindings of all configurables with these prefixes as used."""
        for (_, configurable, _), binding in self.bindings.parameters.items():
            if configurable.startswith(prefixes):
                self._used.add(binding.name)
                self._mark(binding.value)

    def _mark(self, value: Any) -> None:
        if isinstance(value, Macro) and value.name not in self._macros:
            self._macros.add(value.name)
            if value.name in self.bindings.macros:
                self._mark(self.bindings.macros[value.name].value)
        elif isinstance(value, list | tuple):
            for item in value:
                self._mark(item)

    def finish(self, job: type) -> None:
        """Checks the values of a job, and notes what the run did not use.

        Raises:
          UserError: required values are missing or have a wrong type, or parts of the run have no
            equivalent.
        """
        if self._missing:
            names = "".join(f"\n  {name} {why}" for name, why in self._missing.items())
            raise UserError(
                f"{len(self._missing)} required "
                f"{'value is' if len(self._missing) == 1 else 'values are'} missing:{names}\n"
                "Set each with --gin.NAME=VALUE (t5_mesh_transformer: --gin_param='NAME = VALUE')."
                + self.not_understood()
            )
        if self._refusals:
            raise UserError("This run has no equivalent:\n  " + "\n  ".join(self._refusals))
        check_types(job, self.settings, self.origins)
        for row, binding, value in self._compared:
            assert row.equals is not None
            if self.settings.get(row.equals) != value:
                self.note(binding, f"{row.note} (`{row.equals}`)", True)
        for (scope, configurable, _), binding in self.bindings.parameters.items():
            if binding.name in self._used or binding.is_default:
                continue
            self._unused(binding, scope, configurable)
        referred = self.bindings.referred_macros()
        for name, binding in self.bindings.macros.items():
            once = name not in self.bindings.overridden
            others = [each for each in self.bindings.macros if each != name]
            if binding.on_command_line and once and name not in self._macros:
                reason = f"no binding refers to %{name}.{did_you_mean(name, others)}"
                self.note(binding, reason, False)
            elif name not in referred and not binding.is_default:
                # Files may define macros for others; only one that looks misspelled is named.
                near = difflib.get_close_matches(name, referred, n=1, cutoff=_MISSPELLED)
                if near:
                    reason = f"no binding refers to %{name}. Did you mean {near[0]}?"
                    self.note(binding, reason, False)

    def _unused(self, binding: Binding, scope: str, configurable: str) -> None:
        """Notes a binding that the run does not use, and whether it looks misspelled."""
        names = [section.name.rpartition("/")[2] for section in self._sections.values()]
        if configurable not in names:
            # Without the module, which the binding may write otherwise.
            short = {name.rpartition(".")[2]: name for name in names}
            near = nearest(configurable.rpartition(".")[2], short)
            hint = suggestion(short[name] for name in near)
            self.note(binding, f"mtf does not know {configurable}.{hint}", False)
            return
        scopes = self.bindings.scopes() | {
            section.name.rpartition("/")[0] for section in self._sections.values()
        }
        if scope not in scopes:
            hint = did_you_mean(scope, scopes)
            self.note(binding, f"nothing has the scope {scope}.{hint}", False)
            return
        self.note(binding, "this run does not use it", not binding.on_command_line)

    def _row(self, row: Row, binding: Binding, scope: str) -> None:
        if row.anything:
            self._mark(binding.value)
            return
        try:
            value = self.resolve(binding.value, binding)
        except _MissingError:
            if not row.optional:
                return
            self._missing.pop(_name_of(binding), None)
            return
        if row.parts is not None and self._parts(row, binding, value, scope):
            return
        if _is_in(value, row.fixed):
            return
        if row.equals is not None:
            self._compared.append((row, binding, value))
        elif row.path is not None:
            self._set(row, binding, value)
        elif row.refused:
            self._refusals.append(f"{binding} ({binding.where}): {row.reason}.")
        else:
            self.note(binding, row.reason, documented=bool(row.note))

    def _set(self, row: Row, binding: Binding, value: Any) -> None:
        assert row.path is not None
        try:
            if row.convert is not None:
                try:
                    value = row.convert(value)
                except (TypeError, ValueError) as error:
                    raise NotTranslatedError(f"mtf cannot convert {value!r}") from error
            elif any(isinstance(each, Reference) for each in _flat(value)):
                expected = f"set {binding.name} to a value"
                self._refusals.append(
                    f"{binding} ({binding.where}): mtf has no equivalent of {value}; {expected}."
                )
                return
        except NotTranslatedError as error:
            self.note(binding, str(error), documented=True)
            return
        self.settings[row.path] = value
        self.origins[row.path] = binding

    def _parts(self, row: Row, binding: Binding, value: Any, scope: str) -> bool:
        """Translates the configurables that a value refers to; returns whether that was all."""
        assert row.parts is not None
        values = _flat(value)
        if not all(isinstance(each, Reference) for each in values):
            if row.path is None:
                self._unknown_part(row, binding, value)
            return row.path is None
        for each in values:
            if each.configurable in row.parts:
                name = row.parts[each.configurable]
                self.settings.setdefault("parts", set()).add(name)
                self.section(name, each.configurable, each.scope or scope)
            elif row.path is not None:
                return False
            else:
                self._unknown_part(row, binding, each)
        return True

    def _unknown_part(self, row: Row, binding: Binding, value: Any) -> None:
        assert row.parts is not None
        expected = " or ".join(f"@{name}" for name in row.parts)
        if row.note:
            self.note(binding, row.note, documented=True)
        else:
            self._refusals.append(
                f"{binding} ({binding.where}): mtf has no equivalent of {value}; expected "
                f"{expected}."
            )

    def resolve(self, value: Any, binding: Binding) -> Any:
        """Replaces macros by their values, also inside of lists and dicts."""
        if isinstance(value, Macro):
            if value.name == _REQUIRED:
                self._missing.setdefault(binding.name, f"({binding.where})")
                raise _MissingError
            found = self.bindings.macros.get(value.name)
            if found is None:
                hint = did_you_mean(value.name, self.bindings.macros)
                if value.name == "MODEL":
                    hint = " Add a model's gin file, such as t5x/examples/t5/t5_1_1/base.gin."
                why = f"({binding.where}: {binding}), which nothing defines.{hint}"
                self._missing.setdefault(value.name, why)
                raise _MissingError
            self._macros.add(value.name)
            if value.name in self._resolving:
                circle = " → ".join([*self._resolving, value.name])
                raise UserError(f"Macros refer to each other: {circle} ({found.where}).")
            self._resolving.append(value.name)
            try:
                return self.resolve(found.value, found)
            finally:
                self._resolving.pop()
        if isinstance(value, dict):
            return {self.resolve(k, binding): self.resolve(v, binding) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.resolve(item, binding) for item in value)
        return value


class _MissingError(Exception):
    """A value is `%gin.REQUIRED`, or a macro is not defined."""


def _flat(value: Any) -> list[Any]:
    """Returns the items of lists and the values of dicts, also of inner ones."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [item for each in value for item in _flat(each)]
    return [value]


def _name_of(binding: Binding) -> str:
    return binding.value.name if isinstance(binding.value, Macro) else binding.name


def _is_in(value: Any, values: tuple[Any, ...]) -> bool:
    """Returns whether a value is among values of the same kind; True is not 1.

    A reference is compared as text without its brackets.
    """
    if isinstance(value, Reference):
        value = str(value).removesuffix("()")
    return any(type(value) is type(each) and value == each for each in values)
