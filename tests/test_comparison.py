"""The comparison with other programs (docs/comparison.md): mtf's column, and what ticks a row."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.comparison.programs import PEERS, ROOT, Mtf, Program
from benchmarks.comparison.rows import ROWS
from benchmarks.comparison.shell import Said, Shell

TRAINING = ("rerun", "sweep")
PAGE = ROOT / "docs" / "comparison.md"


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.slow if row in TRAINING else ()) for row in ROWS],
)
def test_mtf_meets_every_point(row: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"})
    points = Mtf(shell).ask(row)
    assert all(points.values()), (points, shell.said)


class Silent(Shell):
    """A shell in which every command succeeds and prints nothing."""

    def run(self, *command: str, shown: str = "", **variables: str) -> Said:
        return Said("", 0, "")

    def tab(self, line: str, source: str) -> Said:
        return Said("", 0, "")


@pytest.mark.parametrize("program", [*PEERS.values(), Mtf])
def test_a_program_that_does_nothing_meets_no_point(program: type[Program], tmp_path: Path) -> None:
    silent = program(Silent(tmp_path, {}))
    assert {row: [point for point, met in silent.ask(row).items() if met] for row in ROWS} == {
        row: [] for row in ROWS
    }


def test_the_page_has_the_table_of_the_script() -> None:
    table = PAGE.read_text().partition("| | NeMo-Run |")[2].partition("\n\n")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in f"| | NeMo-Run |{table}".splitlines()
    ]
    assert [row[0] for row in rows] == [row.title for row in ROWS.values()]
    assert head[1:] == [each.name for each in [*PEERS.values(), Mtf]]
    assert {row[-1] for row in rows} == {"✓"}
    assert {cell for row in rows for cell in row[1:]} == {"✓", "partly", "–"}
