"""Parses the HLO text of a program compiled by XLA, and counts how often instructions run."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MARK = re.compile(r'"(?:\\.|[^"\\])*"|[\[({]|[\])}]|, ?| ')
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^{}]*\})?")
_CALLS = {
    *("calls", "to_apply", "body", "condition"),
    *("branch_computations", "true_computation", "false_computation"),
}


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of an array; `in_main_memory` is False if it is in faster memory or on the host."""

    dtype: str
    shape: tuple[int, ...]
    in_main_memory: bool = True

    @property
    def num_bytes(self) -> int:
        """The size of the array in bytes."""
        bits = re.search(r"\d+", self.dtype)  # None for "pred", which takes one byte
        return math.ceil(math.prod(self.shape) * int(bits[0] if bits else 8) / 8)


@dataclasses.dataclass(eq=False)
class Instruction:
    """An instruction of a computation.

    Attributes:
      opcode: the kind of operation, such as "dot".
      arrays: the types of the arrays in its result; several if the result is a tuple.
      operands: the instructions whose results are its inputs.
      argument: the text in parentheses after the opcode, such as the value of a constant.
      attributes: a dict mapping the names of attributes to texts, such as "direction" to "LT".
      called: a dict mapping the names of attributes, such as "calls", to the computations to which
        they refer.
      users: the instructions that use its result.
    """

    opcode: str
    arrays: tuple[Array, ...]
    operands: Sequence[Instruction]
    argument: str
    attributes: Mapping[str, str]
    called: Mapping[str, Sequence[Computation]]
    users: list[Instruction] = dataclasses.field(default_factory=list)

    @property
    def fused(self) -> Computation:
        """The instructions inside a fusion; empty for other instructions."""
        return self.called["calls"][0] if self.opcode == "fusion" else ()

    @functools.cached_property
    def backend_config(self) -> Mapping[str, Any]:
        """The data that the device's compiler attached to the instruction."""
        text = self.attributes.get("backend_config", "")
        return dict(json.loads(text)) if text.startswith("{") else {}


# The instructions in execution order; the last one computes the result.
Computation = Sequence[Instruction]


def running(computation: Computation, times: float = 1) -> Iterator[tuple[Instruction, float]]:
    """Yields each instruction, except those inside fusions, with the number of times it runs.

    Instructions in a loop count once per iteration. All branches of a conditional count, as if
    each of them ran.
    """
    for each in computation:
        yield each, times
        if each.opcode == "while":
            yield from running(each.called["body"][0], times * _trip_count(each))
        elif each.opcode in ("conditional", "call", "async-start"):
            for callees in each.called.values():
                for callee in callees:
                    yield from running(callee, times)


def _trip_count(loop: Instruction) -> int:
    """Returns the maximum number of iterations of a loop, or 1 if it is unknown."""
    if "known_trip_count" in loop.backend_config:
        return int(loop.backend_config["known_trip_count"]["n"])
    # The condition is an expression such as `i < limit and not finished`.
    inside = list(loop.called["condition"][0])
    inside += [x for each in inside for callees in each.called.values() for x in callees[0]]
    if not any(each.attributes.get("direction") == "LT" for each in inside):
        return 1
    return math.ceil(max(_constants(inside), default=1) / _step(loop))


def _step(loop: Instruction) -> int:
    """Returns the increment of a loop's counter, for example 2 if XLA merged two iterations."""
    compare, result = loop.called["condition"][0][-1], loop.called["body"][0][-1]
    indices = [x.attributes["index"] for x in compare.operands if "index" in x.attributes]
    if result.opcode != "tuple" or not indices:
        return 1
    following = result.operands[int(indices[0])]
    return max(_constants(following.operands), default=1) if following.opcode == "add" else 1


def _constants(computation: Computation) -> list[int]:
    texts = (each.argument for each in computation if each.opcode == "constant")
    return [int(text) for text in texts if text.isdigit()]


def parse(text: str) -> Computation:
    """Returns the entry computation of `compiled.as_text()`, in which callees precede callers."""
    computations: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    names: dict[str, Instruction] = {}
    has_result = False
    for line in text.splitlines():
        if line.startswith("  ") and " = " in line:
            name, _, kind, call, *rest = split(line.strip().removeprefix("ROOT "))
            opcode, _, argument = call.partition("(")
            attributes: dict[str, str] = {}
            for each in rest:
                key, _, value = each.partition("=") if each[0] != "{" else ("mesh_axes", "", each)
                attributes[key] = value
            called = {
                key: [computations[callee] for callee in re.findall(r"%[\w.\-]+", attributes[key])]
                for key in attributes.keys() & _CALLS
            }
            operands = [names[operand] for operand in re.findall(r"%[\w.\-]+", argument)]
            instruction = names[name] = Instruction(
                opcode, arrays(kind), operands, argument[:-1], attributes, called
            )
            current.insert(len(current) - has_result, instruction)
            has_result |= line.startswith("  ROOT ")
            for operand in dict.fromkeys(operands):
                operand.users.append(instruction)
        elif line.endswith("{") and not line.startswith(" "):
            current, names, has_result = [], {}, False
            computations[line.removeprefix("ENTRY ").split(" ", 1)[0]] = current
    return current


def split(text: str) -> list[str]:
    """Splits a text at the commas and spaces that are outside brackets and strings."""
    found, depth, start = [], 0, 0
    for mark in _MARK.finditer(text):
        depth += (mark[0] in "[({") - (mark[0] in "])}")
        if not depth and mark[0] in (", ", ",", " "):
            found.append(text[start : mark.start()])
            start = mark.end()
    return [*found, text[start:]]


@functools.lru_cache(maxsize=65_536)
def arrays(text: str) -> tuple[Array, ...]:
    """Returns the arrays in the text of a type, such as `(f32[2,3]{1,0}, s32[])`."""
    return tuple(
        Array(dtype, tuple(numbers(shape)), "S(" not in layout)
        for dtype, shape, layout in _ARRAY.findall(text)
    )


def numbers(text: str) -> list[int]:
    """Returns all integers in a text."""
    return [int(number) for number in re.findall(r"\d+", text)]
