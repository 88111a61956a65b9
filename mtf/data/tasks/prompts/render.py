"""Applies a prompt template to a record of its dataset, as in promptsource and T0.

Unlike in promptsource, random choices are determined by a key, so a record always yields the same
text.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mtf.base.errors import UserError
from mtf.base.extras import import_extra
from mtf.data.tasks.prompts.templates import Template

# Increase this number when rendered text changes, so that caches with the old text are rejected.
RENDERING_VERSION = 1
SEPARATOR = "|||"
NO_LABEL = "<NO LABEL>"
MAX_VARIABLE_LENGTH = 2048

# promptsource defines this constant and uses it in the templates for multi_news.
_PROTECTED_SEPARATOR = "3ed2dface8203c4c9dfb1a5dc58e41e0"
_RANDOM = "mtf_random_choices"
# Errors that a template may raise for a record that is not from the template's dataset.
_ROW_ERRORS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class Rendered(NamedTuple):
    """A rendered record; `targets` is `<NO LABEL>` if the record has no label."""

    inputs: str
    targets: str
    answer_choices: tuple[str, ...] | None


def render(template: Template, row: Mapping[str, Any], key: str) -> Rendered | None:
    """Renders a record as text; returns None if the template drops the record.

    Args:
      template: template for the record's dataset.
      row: record, a dict mapping column names to values. In a template, `_` replaces each `-` in a
        column name.
      key: string that identifies the record and determines the template's random choices.

    Raises UserError if the template is not valid Jinja or fails for this record.
    """
    variables = {name.replace("-", "_"): value for name, value in row.items()}
    for name, value in variables.items():
        if isinstance(value, str):
            variables[name] = value.replace(SEPARATOR, _PROTECTED_SEPARATOR)
    if "answer_choices" in variables:
        raise UserError(
            f"prompt {template.name!r}: the dataset has a column answer_choices, but this name is "
            "reserved for the template's answer choices; rename the column"
        )
    body, choices = _compiled(template)
    variables[_RANDOM] = _draws(key)
    try:
        answer_choices = None if choices is None else _parts(choices.render(variables))
        variables["answer_choices"] = answer_choices
        parts = _parts(body.render(variables))
    except (import_extra("jinja2", "rendering prompts").TemplateError, *_ROW_ERRORS) as error:
        raise UserError(
            f"prompt {template.name!r} cannot be applied to record {key} "
            f"(PROMPT/SPLIT/RECORD/SEED): {type(error).__name__}: {error}; the record's columns "
            f"are {', '.join(row)}"
        ) from error
    # A template drops a record if it renders more or fewer than two parts, or empty inputs.
    if len(parts) != 2 or not parts[0]:
        return None
    inputs, targets = parts
    return Rendered(inputs, targets or NO_LABEL, tuple(answer_choices) if answer_choices else None)


def rendering_version(template: Template) -> int:
    """Returns a number that increases whenever mtf changes how it renders this template."""
    # Earlier versions of mtf replaced separators in records with different text.
    return RENDERING_VERSION + (_PROTECTED_SEPARATOR in template.jinja)


def render_text(text: str, row: Mapping[str, Any]) -> str:
    """Renders a Jinja template for a record.

    In the template, `_` replaces each `-` in a column name. Unlike in `render`, long variables are
    not truncated, and an unknown column is an error. Random choices depend only on the record.
    Raises UserError if the template is not valid Jinja or fails for this record.
    """
    jinja2 = import_extra("jinja2", "rendering templates")
    try:
        variables = {name.replace("-", "_"): value for name, value in row.items()}
        variables[_RANDOM] = _draws(repr(sorted(row.items())))
        return str(_compiled_text(text).render(variables))
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"the template {text!r} is not valid Jinja: {error.message}") from error
    except (jinja2.TemplateError, *_ROW_ERRORS) as error:
        raise UserError(
            f"the template {text!r} fails: {type(error).__name__}: {error}; the columns are "
            f"{', '.join(row)}"
        ) from error


@functools.lru_cache(maxsize=64)
def _compiled_text(text: str) -> Any:
    undefined = import_extra("jinja2", "rendering templates").StrictUndefined
    return _environment().overlay(undefined=undefined).from_string(text)


@functools.lru_cache(maxsize=1024)
def fixed_answer_choices(template: Template) -> tuple[str, ...] | None:
    """Returns the answer choices if they are the same for all records, else None."""
    if template.answer_choices is None:
        return None
    _, choices = _compiled(template)
    syntax_tree = _environment().parse(template.answer_choices)
    if import_extra("jinja2.meta", "rendering prompts").find_undeclared_variables(syntax_tree):
        return None
    try:
        return tuple(_parts(choices.render({_RANDOM: _draws("")})))
    except import_extra("jinja2", "rendering prompts").TemplateError as error:
        raise UserError(f"prompt {template.name!r}: invalid answer choices: {error}") from error


def _parts(text: str) -> list[str]:
    return [part.replace(_PROTECTED_SEPARATOR, SEPARATOR).strip() for part in text.split(SEPARATOR)]


@functools.lru_cache(maxsize=1024)
def _compiled(template: Template) -> tuple[Any, Any]:
    """Returns the compiled body and the compiled answer choices (or None) of a template."""
    jinja2 = import_extra("jinja2", "rendering prompts")
    truncated = f" | string | truncate({MAX_VARIABLE_LENGTH}) }}}}"
    try:
        body = _environment().from_string(template.jinja.replace("}}", truncated))
        if template.answer_choices is None:
            return body, None
        return body, _environment().from_string(template.answer_choices)
    except jinja2.TemplateSyntaxError as error:
        raise UserError(
            f"prompt {template.name!r} is not valid Jinja: line {error.lineno}: {error.message}"
        ) from error


@functools.cache
def _environment() -> Any:
    jinja2 = import_extra("jinja2", "rendering prompts")
    from mtf.data.tasks.prompts.bounded import BoundedEnvironment  # Imports Jinja.

    @jinja2.pass_context
    def choice(context: Mapping[str, Any], items: Any) -> Any:
        return context[_RANDOM](items if isinstance(items, Sequence) else list(items))

    highlight = "<span style='color: #F08080'>{}</span>".format
    chosen: dict[str, Callable[..., Any]] = dict.fromkeys(("choice", "random"), choice)
    return BoundedEnvironment({**chosen, "highlight": highlight, "most_frequent": _most_frequent})


def _draws(key: str) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that chooses items pseudorandomly, with `key` as the seed."""
    numbers = itertools.count()

    def draw(items: Sequence[Any]) -> Any:
        name = f"{key}\0{next(numbers)}".encode("utf-8", errors="surrogatepass")
        if not items:
            raise LookupError("cannot choose at random from an empty sequence")
        bits = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        return items[bits % len(items)]

    return draw


def _most_frequent(items: Sequence[Any]) -> list[Any] | None:
    if not items:
        return None
    counts = Counter(items)
    return [item for item, count in counts.items() if count == max(counts.values())]
