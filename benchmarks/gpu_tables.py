"""The tables of gpu.py's results, in the form of RESULTS.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
_SIDES = ("mtf", "torch")


def tables(results: Iterable[Row]) -> str:
    """Returns the machine, a table for each section, and what could not be measured."""
    rows = list(results)
    parts = [_machine(row) for row in rows if row["section"] == "machine"]
    for section, columns in _COLUMNS.items():
        found = [row for row in rows if row["section"] == section and "failed" not in row]
        if found:
            parts.append(f"{section}\n\n{_table(columns, found)}")
    failed = [row for row in rows if "failed" in row]
    if failed:
        parts.append("not measured\n\n" + "\n".join(_failure(row) for row in failed))
    return "\n\n".join(parts)


def _machine(row: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    gpu = f"{row['gpu']} ({row['memory']}, driver {row['driver']})" if row["gpu"] else "no GPU"
    return f"{row['date']}, {gpu}, {row['cpus']} CPUs, {versions}"


def _failure(row: Row) -> str:
    about = [f"{k} {_text(v)}" for k, v in row.items() if k not in ("failed", "section")]
    return f"* {row['section']}: {', '.join(about)}: {row['failed']}"


def _table(columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> str:
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[column(row) for column in columns.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def _field(name: str) -> Callable[[Row], str]:
    return lambda row: _text(row.get(name, ""))


def _both(name: str, form: str = "{:.3f}", scale: float = 1.0) -> Callable[[Row], str]:
    """Returns a column of the figures of both sides."""

    def column(row: Row) -> str:
        found = [row.get(side, {}).get(name) for side in _SIDES]
        texts = ["–" if x is None else form.format(x * scale) for x in found]
        return " / ".join(texts)

    return column


def _rate(count: Callable[[Row], float]) -> Callable[[Row], str]:
    """Returns a column of what both sides process in a second."""

    def column(row: Row) -> str:
        return " / ".join(
            f"{count(row) / row[side]['seconds']:,.0f}" if side in row else "–" for side in _SIDES
        )

    return column


def _ratio(row: Row) -> str:
    if any(side not in row for side in _SIDES):
        return ""
    return f"**{row['mtf']['seconds'] / row['torch']['seconds']:.3f}**"


def _attention(name: str) -> Callable[[Row], str]:
    """Returns a column of an implementation: time, and largest relative error."""

    def column(row: Row) -> str:
        if name not in row:
            return "–"
        error = max(row[name]["errors"].values())
        return f"{row[name]['seconds'] * 1e3:.3f} ({error:.1e})"

    return column


_BOTH = "mtf / PyTorch"
_COLUMNS: dict[str, dict[str, Callable[[Row], str]]] = {
    "attention": {
        "attention": _field("kind"),
        "batch": _field("batch"),
        "queries": _field("queries"),
        "keys": _field("keys"),
        "heads": _field("heads"),
        "packed": lambda row: "yes" if row["packed"] else "no",
        "pass": lambda row: "forward, backward" if row["backward"] else "forward",
        "mtf, ms (error)": _attention("mtf"),
        "XLA, ms (error)": _attention("xla"),
        "cuDNN, ms (error)": _attention("cudnn"),
        "temporary GiB": lambda row: " / ".join(
            f"{row[name]['gib']:.2f}" if name in row else "–" for name in ("mtf", "xla", "cudnn")
        ),
    },
    "train": {
        "size": _field("size"),
        "lengths": _field("lengths"),
        "batch": _field("batch"),
        "mtf": _field("variant"),
        "PyTorch": _field("peer"),
        f"s, {_BOTH}": _both("seconds"),
        f"tokens/s, {_BOTH}": _both("tokens_per_second", "{:,.0f}"),
        f"MFU %, {_BOTH}": _both("mfu", "{:.1f}", 100),
        f"time, {_BOTH}": _ratio,
        f"GiB, {_BOTH}": _both("gib", "{:.1f}"),
        f"compile s, {_BOTH}": _both("compile", "{:.0f}"),
    },
    "rank": {
        "size": _field("size"),
        "median lengths": _field("lengths"),
        "batch": _field("batch"),
        "PyTorch": _field("peer"),
        f"examples/s, {_BOTH}": _rate(lambda row: row["examples"]),
        f"time, {_BOTH}": _ratio,
        f"first pass s, {_BOTH}": _both("first", "{:.0f}"),
    },
    "decode": {
        "size": _field("size"),
        "lengths": _field("lengths"),
        "beams": _field("num_beams"),
        "batch": _field("batch"),
        "PyTorch": _field("peer"),
        f"s, {_BOTH}": _both("seconds"),
        f"tokens/s, {_BOTH}": _rate(lambda row: row["batch"] * row["lengths"][1]),
        f"time, {_BOTH}": _ratio,
        f"first run s, {_BOTH}": _both("first", "{:.0f}"),
    },
}
