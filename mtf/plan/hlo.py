"""Reads the text of a compiled program of XLA (HLO), and how often each of its parts runs."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_ITEMSIZE = {"pred": 1, "token": 0, "opaque": 0, "c64": 8, "c128": 16}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*-> .*{$")
_NAME = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_SPACE = re.compile(r"S\((\d+)\)")


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of an array.

    Attributes:
      dtype: XLA's name, such as "f32".
      shape: sizes.
      space: memory space; 0 is the device's main memory.
    """

    dtype: str
    shape: tuple[int, ...]
    space: int = 0

    @property
    def num_bytes(self) -> int:
        """The size of the elements."""
        digits = re.sub(r"\D.*", "", self.dtype.lstrip("bfsu")) or "8"
        bits = int(digits) if self.dtype not in _ITEMSIZE else 8 * _ITEMSIZE[self.dtype]
        return math.ceil(math.prod(self.shape) * bits / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation.

    Attributes:
      name: its name.
      opcode: such as "dot".
      arrays: the arrays of its result; several if the result is a tuple.
      operands: names of instructions of the same computation.
      argument: the text in parentheses, such as the value of a constant.
      attributes: the text after the operands.
      is_root: whether its result is that of the computation.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    argument: str
    attributes: str
    is_root: bool

    def called(self, *keys: str) -> list[str]:
        """Returns the computations that attributes such as `calls=%name` name."""
        found: list[str] = []
        for key in keys:
            for text in re.findall(rf"\b{key}=(\{{[^}}]*\}}|%?[\w.\-]+)", self.attributes):
                found += [name.strip(" %") for name in text.strip("{}").split(",")]
        return found


Computation = Mapping[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
      computations: name → instructions by name, in order.
      entry: name of the computation that runs first.
    """

    computations: Mapping[str, Computation]
    entry: str

    def running(self) -> Iterator[tuple[Computation, float]]:
        """Yields the computations that run by themselves, with the number of their runs.

        The bodies of loops run as often as the loop repeats, each branch of a condition once.
        Fusions are part of the computation that contains them.
        """
        todo: list[tuple[str, float]] = [(self.entry, 1)]
        while todo:
            name, times = todo.pop()
            computation = self.computations[name]
            yield computation, times
            for each in computation.values():
                if each.opcode == "while":
                    trips = times * self.trip_count(each)
                    todo += [(body, trips) for body in each.called("body")]
                elif each.opcode == "conditional":
                    keys = "branch_computations", "true_computation", "false_computation"
                    todo += [(branch, times) for branch in each.called(*keys)]
                elif each.opcode == "call":
                    todo += [(callee, times) for callee in each.called("to_apply")]
                elif each.opcode == "async-start":
                    todo += [(callee, times) for callee in each.called("calls")]

    def trip_count(self, loop: Instruction) -> int:
        """Returns how often a loop repeats, at most; 1 if it is not known."""
        known = _TRIPS.search(loop.attributes)
        if known:
            return int(known[1])
        (condition,) = loop.called("condition")
        inside = [self.computations[condition]]
        inside += [
            self.computations[name]
            for each in inside[0].values()
            for name in each.called("calls", "to_apply")
        ]
        compared = any(
            each.opcode == "compare" and "direction=LT" in each.attributes
            for computation in inside
            for each in computation.values()
        )
        limits = [
            int(each.argument)
            for computation in inside
            for each in computation.values()
            if each.opcode == "constant" and each.argument.isdigit()
        ]
        limit = max(limits, default=1) if compared else 1
        return math.ceil(limit / self._step(loop, inside[0]))

    def _step(self, loop: Instruction, condition: Computation) -> int:
        """Returns by how much a loop's counter grows; 2 if XLA put two repetitions into one."""
        (name,) = loop.called("body")
        body = self.computations[name]
        (compare,) = (each for each in condition.values() if each.is_root)
        (result,) = (each for each in body.values() if each.is_root)
        for operand in (condition.get(name) for name in compare.operands):
            index = re.search(r"\bindex=(\d+)", operand.attributes) if operand else None
            if index is None or result.opcode != "tuple":
                continue
            following = body[result.operands[int(index[1])]]
            terms = [body[name] for name in following.operands if following.opcode == "add"]
            constants = [each.argument for each in terms if each.opcode == "constant"]
            steps = [int(constant) for constant in constants if constant.isdigit()]
            return max(steps, default=1)
        return 1

    def fused(self, instruction: Instruction) -> Computation | None:
        """Returns the computation of a fusion; None for other instructions."""
        if instruction.opcode != "fusion":
            return None
        (name,) = instruction.called("calls")
        return self.computations[name]


def parse(text: str) -> Module:
    """Returns the module of `compiled.as_text()`."""
    computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] = {}
    entry = ""
    for line in text.splitlines():
        header = None if line.startswith(" ") else _COMPUTATION.match(line)
        if header:
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif line.startswith("  ") and (start := _NAME.match(line)):
            instruction = _instruction(start[2], line[start.end() :], bool(start[1]))
            current[instruction.name] = instruction
    return Module(computations, entry)


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    kind, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    end = _closing(rest, start)
    argument = rest[start + 1 : end - 1]
    return Instruction(
        name,
        rest[:start],
        arrays(kind),
        tuple(_OPERAND.findall(argument)),
        argument,
        rest[end:],
        is_root,
    )


def _closing(text: str, start: int) -> int:
    """Returns the place after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place + 1
    return len(text)


@functools.lru_cache(maxsize=65_536)
def arrays(text: str) -> tuple[Array, ...]:
    """Returns the arrays of a type, such as `(f32[2,3]{1,0}, s32[])`."""
    found = []
    for dtype, shape, layout in _ARRAY.findall(text):
        space = _SPACE.search(layout)
        sizes = tuple(int(size.lstrip("<=")) for size in shape.split(",") if size)
        found.append(Array(dtype, sizes, int(space[1]) if space else 0))
    return tuple(found)
