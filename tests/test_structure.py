"""What the design promises about the code itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("mtf", "recipes", "conversion")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
HEAVY = {"jax", "flax", "optax", "orbax", "tensorflow", "seqio", "torch", "grain", "numpy"}


def imported(statement: str) -> set[str]:
    """Top-level modules loaded in a fresh process after `statement`."""
    code = f"import sys\n{statement}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["recipes", "mtf.builders", "mtf.jobs", "mtf.config", "mtf.run", "mtf.convert"]
)
def test_showing_a_recipe_needs_no_array_library(module: str) -> None:
    assert not imported(f"import {module}") & HEAVY


def test_training_and_conversion_import_neither_tensorflow_nor_torch() -> None:
    loaded = imported("import mtf.jobs.train_run, mtf.jobs.train_plan, conversion")
    assert "jax" in loaded
    assert not loaded & {"tensorflow", "torch", "seqio", "transformers", "fiddle"}


def imports_of(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


# Folder → what no file in it may import: the dependency direction of docs/design.md.
FORBIDDEN = {
    "conversion": ("mtf", "recipes"),
    "mtf/config": ("mtf.jobs", "mtf.builders", "mtf.training", "mtf.models", "recipes", "jax"),
    "mtf/models": ("mtf.training", "mtf.jobs", "mtf.builders", "mtf.data", "recipes", "fiddle"),
    "mtf/training": ("mtf.jobs", "mtf.builders", "recipes", "fiddle"),
    "mtf/checkpoints": ("mtf.jobs", "mtf.builders", "recipes", "fiddle"),
    "mtf/data": ("mtf.training", "mtf.models", "mtf.jobs", "mtf.builders", "recipes", "jax"),
    "mtf/prompts": ("mtf.tasks", "mtf.training", "mtf.jobs", "recipes", "jax"),
    "mtf/tasks": ("mtf.training", "mtf.models", "mtf.jobs", "mtf.builders", "recipes", "jax"),
    "mtf/jobs": ("mtf.builders", "recipes", "fiddle"),
    "mtf/builders": ("recipes", "jax"),
    "mtf": ("recipes",),
}


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_dependencies_point_one_way(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        if path == ROOT / "mtf/prompts/__main__.py":
            continue  # A command, which also shows tasks.
        for name in imports_of(path):
            for forbidden in FORBIDDEN[folder]:
                wrong = name == forbidden or name.startswith(f"{forbidden}.")
                assert not wrong, f"{path.relative_to(ROOT)} imports {name}"


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
        assert ast.get_docstring(node), f"{node.name} has no docstring"
        if isinstance(node, ast.FunctionDef):
            assert node.returns is not None, f"{node.name} has no return type"
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            untyped = [a.arg for a in arguments if a.annotation is None]
            assert untyped in ([], ["self"], ["cls"]), f"{node.name}: {untyped} untyped"
