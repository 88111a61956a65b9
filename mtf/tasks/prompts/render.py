"""Applies a prompt template to a row of its dataset, as promptsource and T0 did.

The one difference: a template's random choices are a function of a key from the caller, so that
the same row always gives the same text.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mtf.errors import UserError
from mtf.extras import import_extra
from mtf.tasks.prompts.templates import Template

# Increase it when the same row gives other text than before: older caches are then refused.
RENDERING_VERSION = 1
SEPARATOR = "|||"
NO_LABEL = "<NO LABEL>"
MAX_VARIABLE_LENGTH = 2048

# 32 characters without a blank, as promptsource's: they count where a variable is truncated.
_PROTECTED_SEPARATOR = "b05f4e6a19d94c33a7c5e28d40617f9b"
_RANDOM = "mtf_random_choices"
# What a template can fail with on a row that is not of its dataset.
_ROW_ERRORS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class Rendered(NamedTuple):
    """A row as text; targets are `<NO LABEL>` without a label, choices None if there are none."""

    inputs: str
    targets: str
    answer_choices: tuple[str, ...] | None


def render(template: Template, row: Mapping[str, Any], key: str) -> Rendered | None:
    """Returns `row` as inputs and targets, or None if the template does not apply to it.

    Args:
      template: a template for the row's dataset.
      row: the columns of a row; `-` in a column's name is read as `_`.
      key: identifies the row: the same key gives the same random choices.

    Raises:
      UserError: the template is not valid Jinja, or fails on this row.
    """
    variables = {name.replace("-", "_"): value for name, value in row.items()}
    for name, value in variables.items():
        if isinstance(value, str):
            variables[name] = value.replace(SEPARATOR, _PROTECTED_SEPARATOR)
    if "answer_choices" in variables:
        raise UserError(
            f"prompt {template.name!r}: a column is called answer_choices, "
            "which is the name of the template's choices"
        )
    body, choices = _compiled(template)
    variables[_RANDOM] = _draws(key)
    try:
        answer_choices = None if choices is None else _parts(choices.render(variables))
        variables["answer_choices"] = answer_choices
        parts = _parts(body.render(variables))
    except (import_extra("jinja2", "prompts").TemplateError, *_ROW_ERRORS) as error:
        raise UserError(
            f"prompt {template.name!r} cannot be applied to row {key}: "
            f"{type(error).__name__}: {error}; the row's columns are {', '.join(row)}"
        ) from error
    # More or fewer than two parts, or no inputs: how templates leave out rows.
    if len(parts) != 2 or not parts[0]:
        return None
    inputs, targets = parts
    return Rendered(inputs, targets or NO_LABEL, tuple(answer_choices) if answer_choices else None)


@functools.lru_cache(maxsize=1024)
def fixed_answer_choices(template: Template) -> tuple[str, ...] | None:
    """Returns the answer choices if they are the same for every row, else None."""
    if template.answer_choices is None:
        return None
    _, choices = _compiled(template)
    syntax_tree = _environment().parse(template.answer_choices)
    if import_extra("jinja2.meta", "prompts").find_undeclared_variables(syntax_tree):
        return None
    try:
        return tuple(_parts(choices.render({_RANDOM: _draws("")})))
    except import_extra("jinja2", "prompts").TemplateError as error:
        raise UserError(f"prompt {template.name!r}: answer choices: {error}") from error


def _parts(text: str) -> list[str]:
    return [part.replace(_PROTECTED_SEPARATOR, SEPARATOR).strip() for part in text.split(SEPARATOR)]


@functools.lru_cache(maxsize=1024)
def _compiled(template: Template) -> tuple[Any, Any]:
    """Returns (body, answer choices or None) as compiled Jinja templates."""
    jinja2 = import_extra("jinja2", "prompts")
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
    jinja2 = import_extra("jinja2", "prompts")
    sandbox = import_extra("jinja2.sandbox", "prompts")
    # Templates come from others: the sandbox keeps them from running code.
    environment = sandbox.SandboxedEnvironment(loader=jinja2.BaseLoader())
    environment.globals["zip"] = zip
    environment.filters["highlight"] = "<span style='color: #F08080'>{}</span>".format
    environment.filters["most_frequent"] = _most_frequent

    # A filter that reads the context is not evaluated once and for all when Jinja compiles.
    @jinja2.pass_context
    def choice(context: Mapping[str, Any], items: Any) -> Any:
        return context[_RANDOM](items if isinstance(items, Sequence) else list(items))

    environment.filters["choice"] = environment.filters["random"] = choice
    return environment


def _draws(key: str) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that draws an item by the key and the number of draws before."""
    numbers = itertools.count()

    def draw(items: Sequence[Any]) -> Any:
        place = f"{key}\0{next(numbers)}".encode("utf-8", errors="surrogatepass")
        if not items:
            raise LookupError("a random choice among no items")
        bits = int.from_bytes(hashlib.blake2b(place, digest_size=8).digest())
        return items[bits % len(items)]

    return draw


def _most_frequent(items: Sequence[Any]) -> list[Any] | None:
    """Returns the items that occur most often, in the order of their first occurrence."""
    if not items:
        return None
    counts = Counter(items)
    return [item for item, count in counts.items() if count == max(counts.values())]
