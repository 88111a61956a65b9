"""What the design promises about the code itself."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.small import python

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("mtf", "recipes", "conversion")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
HEAVY = {"jax", "flax", "optax", "orbax", "tensorflow", "seqio", "torch", "grain", "numpy"}
SEQIOS = {"seqio", "tensorflow", "tensorflow_text"}
SEQIO_FOLDERS = {ROOT / "mtf/data/seqio", ROOT / "mtf/data/seqio_tasks"}


def imported(statement: str) -> set[str]:
    """Top-level modules loaded in a fresh process after `statement`."""
    code = f"import sys\n{statement}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    return set(python("-c", code).stdout.split())


@pytest.mark.parametrize(
    "module",
    ["recipes", "mtf.builders", "mtf.config", "mtf.cli.run", "mtf.cli.status", "mtf.convert"],
)
def test_showing_a_recipe_needs_no_array_library(module: str) -> None:
    assert not imported(f"import {module}") & HEAVY


def test_training_and_conversion_import_neither_tensorflow_nor_torch() -> None:
    loaded = imported(
        "import mtf.training.loop, mtf.training.sizes, mtf.evaluation.infer_eval, conversion"
    )
    assert "jax" in loaded
    assert not loaded & {"tensorflow", "torch", "seqio", "transformers", "fiddle"}


class Import(NamedTuple):
    """A name that a file imports, and the line."""

    name: str
    line: int


def module_name(path: Path) -> str:
    """`mtf/data/__init__.py` → `mtf.data`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports_of(text: str) -> list[Import]:
    """Everything that a file imports, in functions and under TYPE_CHECKING too."""
    tree = ast.parse(text)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [ast.literal_eval(node.args[0])] if is_text(node.args[0]) else []
        else:
            continue
        found += [Import(name, node.lineno) for name in names]
    return found


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@functools.cache
def layers() -> list[tuple[str, list[str]]]:
    """The layers of docs/design.md with their files and folders, from the top to the bottom."""
    page = (ROOT / "docs" / "design.md").read_text()
    table = page.partition("## Rules")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    return [(row[1].strip(), re.findall(r"`([^`]+)`", row[2])) for row in rows[1:]]


@functools.cache
def height_of(path: Path) -> int:
    """Which layer of the table a file is in, 0 being the lowest; the longest path decides."""
    name = path.relative_to(ROOT).as_posix()
    heights = enumerate(reversed(layers()))
    places = [(len(p), h) for h, (_, ps) in heights for p in ps if name == p or name.startswith(p)]
    found = [height for length, height in places if length == max(places)[0]]
    assert len(found) == 1, f"{name} is in {len(found)} layers of docs/design.md"
    return found[0]


def problems(texts: Mapping[Path, str]) -> list[str]:
    """What is wrong with the imports of some files: against the order, in a circle, misplaced."""
    files = {module_name(path): path for path in texts}
    heights = {path: height_of(path) for path in texts}
    found, graph = [], {}
    for path, text in texts.items():
        targets = set()
        for name, line in imports_of(text):
            where = f"{path.relative_to(ROOT)}:{line} imports {name}"
            if name.partition(".")[0] in SEQIOS and path.parent not in SEQIO_FOLDERS:
                found.append(f"{where}, which only SeqIO's folders may")
            while name and name not in files:
                name = name.rpartition(".")[0]
            if name:
                if heights[files[name]] > heights[path]:
                    found.append(f"{where}, which is in a layer above")
                targets.add(name)
        graph[module_name(path)] = targets - {module_name(path)}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(f"a circle of files: {' → '.join(error.args[1])}")
    return found


TEXTS = {path: path.read_text() for path in SOURCES}


def test_files_import_from_their_layer_and_those_below() -> None:
    assert problems(TEXTS) == []


@pytest.mark.parametrize(
    ("file", "added", "problem"),
    [
        ("mtf/data/packing.py", "def f():\n    from mtf.training import loop", "a layer above"),
        ("conversion/tensor.py", "from mtf.base import errors", "a layer above"),
        (
            "mtf/data/mixing.py",
            "if TYPE_CHECKING:\n    import mtf.data.packing",
            "a circle of files",
        ),
        ("mtf/data/packing.py", "def f():\n    import tensorflow", "only SeqIO's folders may"),
    ],
)
def test_a_wrong_import_is_found(file: str, added: str, problem: str) -> None:
    path = ROOT / file
    circle = {ROOT / "mtf/data/packing.py": "import mtf.data.mixing"} if "circle" in problem else {}
    changed = TEXTS | circle | {path: f"{TEXTS[path]}\n{added}\n"}
    assert any(problem in each and file.split("/")[-1][:-3] in each for each in problems(changed))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_public_functions_typed_and_documented(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 650
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not tree.body
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    public = [
        node
        for scope in [tree, *classes]
        for node in scope.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    for node in public:
        is_overload = "overload" in map(ast.unparse, node.decorator_list)
        assert is_overload or ast.get_docstring(node), f"{node.name} has no docstring"
        if isinstance(node, ast.FunctionDef):
            assert node.returns is not None, f"{node.name} has no return type"
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            untyped = [a.arg for a in arguments if a.annotation is None]
            assert untyped in ([], ["self"], ["cls"]), f"{node.name}: {untyped} untyped"
