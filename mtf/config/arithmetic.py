"""Computes the arithmetic in values, such as `2**20`, `1/3` or `[4*8, 16]`, without `eval`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
# No setting needs a larger integer, and 9**9**9 would take hours.
_MAX_BITS = 1000


class ArithmeticRefused(Exception):
    """Raised for arithmetic without a result; the text says why."""


def is_arithmetic(expression: ast.expr) -> bool:
    """Returns whether an expression computes a number from numbers."""
    match expression:
        case ast.Constant(value):
            return type(value) in (int, float)
        case ast.UnaryOp(sign, operand):
            return type(sign) in _SIGNS and is_arithmetic(operand)
        case ast.BinOp(left, _, right):
            return is_arithmetic(left) and is_arithmetic(right)
    return False


def literal(expression: ast.expr) -> Any:
    """Returns the value of a Python literal whose numbers may be computed, at any depth.

    Raises ArithmeticRefused if a number cannot be computed, and ValueError if the expression is not
    a literal.
    """
    return ast.literal_eval(_Computed().visit(expression))


def with_floor_division(expression: ast.expr) -> tuple[str, Any]:
    """Returns an expression with `//` instead of `/`, as text, and its value."""
    for node in ast.walk(expression):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            node.op = ast.FloorDiv()
    return _text(expression), literal(expression)


def _text(expression: ast.expr) -> str:
    return ast.unparse(expression).replace(" ", "")


class _Computed(ast.NodeTransformer):
    """Replaces operations on numbers by their results."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        return self._visit_operation(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return self._visit_operation(node)

    def _visit_operation(self, node: ast.expr) -> ast.expr:
        return ast.Constant(_compute(node)) if is_arithmetic(node) else node


def _compute(expression: Any) -> Any:
    match expression:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(sign, operand):
            return _SIGNS[type(sign)](_compute(operand))
    left, right = _compute(expression.left), _compute(expression.right)
    try:
        result = _apply(expression.op, left, right)
    except ZeroDivisionError:
        raise ArithmeticRefused(f"{_text(expression)} divides by zero") from None
    except OverflowError:
        raise ArithmeticRefused(f"{_text(expression)} is too large") from None
    if isinstance(result, int) and result.bit_length() > _MAX_BITS:
        raise ArithmeticRefused(f"{_text(expression)} is too large")
    return result


def _apply(kind: ast.operator, left: Any, right: Any) -> Any:
    if type(kind) in _OPERATORS:
        return _OPERATORS[type(kind)](left, right)
    if not isinstance(kind, ast.Pow):
        raise ArithmeticRefused("expected one of the operators + - * / // % **")
    are_integers = isinstance(left, int) and isinstance(right, int)
    # The power of a number of n bits has more than (n - 1) * right bits.
    if are_integers and (abs(left).bit_length() - 1) * right >= _MAX_BITS:
        raise OverflowError
    result = left**right
    if isinstance(result, complex):
        raise ArithmeticRefused(f"{left}**{right} is not a real number")
    return result
