"""Bounds the memory and the time that a Jinja template may use, because anyone may have written it.

Each operation first subtracts the size of its arguments, in bytes, from what is left to the
rendering; one whose result can be much longer than its arguments subtracts their product.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from typing import Any

import jinja2
from jinja2 import nodes, runtime, sandbox, utils, visitor

MAX_BYTES = 10**8
MAX_SECONDS = 10.0  # of processor time
_EXCEEDED = f"it needs over {MAX_BYTES:,} bytes or {MAX_SECONDS:g} seconds, or nests too deeply"

# Names of operators, filters and methods. An integer argument of `_REPEATING` is a length.
_REPEATING = {
    *("*", "**", "batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice"),
    *("to_bytes", "tojson", "wordwrap", "zfill"),
}
_GROWING = _REPEATING | {"%", "format", "format_map", "join", "replace", "translate"}
_CONSTANT = {"choice", "count", "d", "default", "first", "last", "length", "random"}
# A width in a format string that has five digits or more, or is itself an argument.
_WIDE = re.compile(r"%[^a-zA-Z]*(\d{5}|\*)|:[^}]*(\d{5}|\{)")

_left = threading.local()  # what the rendering in this thread may still use


def _spend(name: str, *values: Any) -> None:
    """Subtracts what an operation may need; raises SecurityError if less is left."""
    needed = 0 if name in _CONSTANT else sum(map(_size, values))
    is_arithmetic = name in ("*", "%") and isinstance(values[0], int | float)
    if name in _GROWING and not is_arithmetic:
        lengths = [abs(n) for n in values[1:] if isinstance(n, int) and name in _REPEATING]
        needed *= max([1, *lengths, *map(_size, values[1:])])
        if name not in _REPEATING and _WIDE.search(str(values[0])):
            needed = MAX_BYTES + 1
    _left.bytes -= needed
    if time.monotonic() > _left.slow_after and _left.until is None:
        _left.until = time.thread_time() + MAX_SECONDS  # A slow call, so it is not made earlier.
    if _left.bytes < 0 or (_left.until is not None and time.thread_time() > _left.until):
        raise sandbox.SecurityError(_EXCEEDED)


def _size(value: Any) -> int:
    """Returns the approximate size of a value and of its text; stops at what is left."""
    if isinstance(value, str):  # This case is the most frequent one.
        return len(value)
    size, inside = 0, [value]
    while inside and size <= _left.bytes:
        value = inside.pop()
        size += 1
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, int):
            size += value.bit_length()
        elif isinstance(value, Sequence | Set | ValuesView):
            size += 8 * len(value)
            inside += [*value]
        elif isinstance(value, Mapping):
            inside += [*value, *value.values()]
        elif isinstance(value, utils.Namespace):
            inside.append(value._Namespace__attrs)
    return size


def _steps(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend("step", _left.template)
        yield item


def _listed(values: Iterable[Any]) -> list[Any]:
    """Replaces iterators, whose size is unknown, with lists."""
    return [list(each) if isinstance(each, Iterator) else each for each in values]


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a filter that spends before it calls `function`."""
    first = int(hasattr(function, "jinja_pass_arg"))  # Jinja may pass a context before the value.

    @functools.wraps(function)
    def run(*given: Any, **keywords: Any) -> Any:
        arguments = _listed(given) if name in _GROWING else given
        _spend(name, *arguments[first:], *keywords.values())
        return function(*arguments, **keywords)

    return run


@jinja2.pass_context
def _output(context: object, value: Any) -> Any:
    _spend("output", value)
    return value


class _Rewriter(visitor.NodeTransformer):
    """Makes loops count their steps, and replaces the operator `~` with the filter `join`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "steps", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno)


class _Template(jinja2.Template):
    text: str

    def render(self, *args: Any, **kwargs: Any) -> str:
        _left.bytes, _left.template = MAX_BYTES, self.text
        _left.slow_after, _left.until = time.monotonic() + 1, None
        try:
            return super().render(*args, **kwargs)
        except RecursionError:
            raise sandbox.SecurityError(_EXCEEDED) from None


class BoundedEnvironment(sandbox.SandboxedEnvironment):
    """A sandbox that raises SecurityError if a template needs too much memory or time."""

    template_class = _Template
    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self, filters: Mapping[str, Callable[..., Any]]) -> None:
        # Jinja would otherwise compute constants while it compiles, before there are bounds.
        super().__init__(loader=jinja2.BaseLoader(), optimized=False, finalize=_output)
        every = {**self.filters, **filters}
        self.filters = {name: _bounded(name, function) for name, function in every.items()}
        self.filters["steps"] = _steps
        self.globals["zip"] = zip
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Rewriter().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def from_string(self, source: Any, *args: Any, **kwargs: Any) -> jinja2.Template:
        """Compiles a template; raises TemplateSyntaxError if it nests too deeply."""
        try:
            template = super().from_string(source, *args, **kwargs)
        except (RecursionError, MemoryError, SyntaxError):
            raise jinja2.TemplateSyntaxError("it nests too deeply", 1) from None
        template.text = str(source)  # type: ignore[attr-defined]
        return template

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function or method."""
        if isinstance(function, runtime.LoopContext):
            args = tuple(map(_steps, args))
        if isinstance(function, runtime.Macro):
            _spend("step", _left.template)
        name, owner = getattr(function, "__name__", ""), list[Any]()
        if name in _GROWING:
            args = tuple(_listed(args))
            owner = [getattr(getattr(function, "__wrapped__", function), "__self__", "")]
        _spend(name, *owner, *args, *kwargs.values())
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Applies an operator."""
        is_swapped = operator == "*" and isinstance(left, int)
        _spend(operator, *((right, left) if is_swapped else (left, right)))
        return super().call_binop(context, operator, left, right)
