"""Compares mtf's command line with NeMo-Run, Hydra, tyro and draccus.

Each peer has a small training program in `programs/`, with a virtual environment of its own, in
which the versions in `programs/*/requirements.txt` are installed from PyPI. mtf's program is
`recipes.quickstart`, in the environment that runs this. For each row of `rows.py`, each program
runs its own commands, and what they print is checked point by point. Prints the table, and below
it each command with what it printed. In a checkout:

    python -m benchmarks.comparison
    python -m benchmarks.comparison --rows typo sweep --envs envs  # keeps the environments in envs/
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.comparison.programs import PEERS, ROOT, SOURCES, Mtf, Program
from benchmarks.comparison.rows import ROWS
from benchmarks.comparison.shell import Said, Shell

MARKS = {"yes": "✓", "partly": "partly", "no": "–"}


class Answer(NamedTuple):
    """Which points of a row a program meets, and the commands that show it."""

    points: dict[str, bool]
    said: list[Said]

    @property
    def mark(self) -> str:
        met = self.points.values()
        return "yes" if all(met) else "partly" if any(met) else "no"


def main() -> None:
    """Parses the command line, asks all programs, and prints the table and the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rows", nargs="+", choices=ROWS, default=[*ROWS], metavar="ROW")
    add("--programs", nargs="+", choices=[*PEERS, "mtf"], default=[*PEERS, "mtf"], metavar="NAME")
    add("--envs", type=Path, help="keeps the peers' virtual environments in this folder")
    add("--lines", type=int, default=12, help="how much of each output to show")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        envs = args.envs.expanduser().absolute() if args.envs else Path(folder) / "envs"
        for name in args.programs:
            if name in PEERS:
                install(envs / name, SOURCES / name / "requirements.txt")
        answers = {
            row: {
                name: answer(name, row, Path(folder) / name / row, envs) for name in args.programs
            }
            for row in args.rows
        }
    print(table(answers))
    print(details(answers, args.lines))


def install(env: Path, requirements: Path) -> None:
    """Creates a virtual environment, unless it has these packages already."""
    done = env / "requirements.txt"
    if done.exists() and done.read_text() == requirements.read_text():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(env)], check=True)
    pip = [str(env / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)]
    subprocess.run(pip, check=True)
    shutil.copy(requirements, done)


def program(name: str, folder: Path, envs: Path) -> Program:
    """Returns a program in a new folder."""
    base = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    home = {"HOME": str(folder / "home"), "NEMORUN_HOME": str(folder / "home")}
    if name == "mtf":
        folder.mkdir(parents=True)
        path = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        return Mtf(Shell(folder, {**base, **home, **path}))
    shutil.copytree(SOURCES / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = {"PATH": f"{envs / name / 'bin'}:{base['PATH']}", "PYTHONPATH": str(folder)}
    return PEERS[name](Shell(folder, {**base, **home, **path}))


def answer(name: str, row: str, folder: Path, envs: Path) -> Answer:
    """Asks a program a row."""
    print(f"{name}: {row}", file=sys.stderr)
    asked = program(name, folder, envs)
    return Answer(asked.ask(row), asked.shell.said)


def table(answers: dict[str, dict[str, Answer]]) -> str:
    """Returns the table in Markdown, and what is missing where a program answers partly."""
    names = [*next(iter(answers.values()))]
    titles = [{**PEERS, "mtf": Mtf}[name].name for name in names]
    lines = [f"| | {' | '.join(titles)} |", f"|---|{'---|' * len(titles)}"]
    notes = []
    for row, of_programs in answers.items():
        cells = [MARKS[each.mark] for each in of_programs.values()]
        lines.append(f"| {ROWS[row].title} | {' | '.join(cells)} |")
        for title, each in zip(titles, of_programs.values(), strict=True):
            missing = [point for point, met in each.points.items() if not met]
            if each.mark == "partly":
                notes.append(f"* {ROWS[row].title}, {title}: not “{'”, “'.join(missing)}”")
    return "\n".join([*lines, "", *notes, ""])


def details(answers: dict[str, dict[str, Answer]], num_lines: int) -> str:
    """Returns each row's points, commands and outputs, cut to some lines."""
    parts = []
    for row, of_programs in answers.items():
        parts.append(f"## {ROWS[row].title}: {ROWS[row].question}\n")
        for name, each in of_programs.items():
            parts.append(f"### {name}: {each.mark}\n")
            parts += [f"* [{'x' if met else ' '}] {point}" for point, met in each.points.items()]
            parts += ["", *(shown(said, num_lines) for said in each.said)]
    return "\n".join(parts)


def shown(said: Said, num_lines: int) -> str:
    lines = [line.rstrip() for line in said.text.strip().splitlines()]
    if len(lines) > num_lines:
        half = num_lines // 2
        lines = [*lines[:half], f"… ({len(lines) - 2 * half} lines)", *lines[-half:]]
    return "\n".join(["```", f"$ {said.command}", *lines, f"(exit status {said.status})", "```\n"])


if __name__ == "__main__":
    main()
