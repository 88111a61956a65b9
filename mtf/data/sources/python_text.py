"""Reads the documentation of Python's standard library, two million characters of English text.

The source files are parsed without being imported. This takes about two seconds.
"""

from __future__ import annotations

import ast
import functools
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.lru_cache(maxsize=1)
def python_documents() -> tuple[str, ...]:
    """Returns Python's documentation topics, then the docstrings of its library in file order.

    Duplicates are dropped, so that no held-out document is also used for training.
    """
    root = Path(sysconfig.get_path("stdlib"))
    from pydoc_data.topics import topics  # Not needed to show a recipe.

    texts = (topics[name].strip() for name in sorted(topics))
    documents = dict.fromkeys([*texts, *_docstrings(root)])
    return tuple(documents)


def _docstrings(root: Path) -> Iterator[str]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
        for name in sorted(name for name in names if name.endswith(".py")):
            source = Path(folder, name).read_bytes()
            # A third of the files contain no docstrings. Skip these files, because parsing is slow.
            if b'"""' not in source and b"'''" not in source:
                continue
            try:
                with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
                    module = ast.parse(source)
            except (SyntaxError, ValueError):
                continue  # The file is a template or is for another version of Python.
            yield from _docstrings_below(module)


def _docstrings_below(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _DOCUMENTED):
        docstring = ast.get_docstring(node)
        if docstring and docstring.strip():
            yield docstring.strip()
    for child in ast.iter_child_nodes(node):
        # Only statements can contain definitions, so expressions are not searched.
        if isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from _docstrings_below(child)
