"""The English text that ships with Python: two million characters.

The standard library is parsed, which takes about two seconds, and never imported.
"""

from __future__ import annotations

import ast
import functools
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from mtf.errors import UserError

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.lru_cache(maxsize=1)
def python_documents() -> tuple[str, ...]:
    """Returns the documentation topics, then the standard library's docstrings in file order.

    Each docstring is a document. Duplicates are dropped, so no held-out document is trained on.
    Raises UserError if this Python has no sources of the standard library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents = dict.fromkeys([*_topics(root), *_docstrings(root)])
    if not documents:
        raise UserError(
            f"{root} does not contain the source files of Python's standard library, whose "
            "docstrings are the default training text; set data.files to use other text"
        )
    return tuple(documents)


def _topics(root: Path) -> Iterator[str]:
    path = root / "pydoc_data" / "topics.py"
    if not path.is_file():
        return
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            yield from (topics[name].strip() for name in sorted(topics))


def _docstrings(root: Path) -> Iterator[str]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED_FOLDERS)
        for name in sorted(name for name in names if name.endswith(".py")):
            source = Path(folder, name).read_bytes()
            # Parsing takes nearly all the time, and a third of the files have no docstring.
            if b'"""' not in source and b"'''" not in source:
                continue
            try:
                with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
                    module = ast.parse(source)
            except (SyntaxError, ValueError):
                continue  # a template, or a file for another Python version
            yield from _docstrings_below(module)


def _docstrings_below(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _DOCUMENTED):
        docstring = ast.get_docstring(node)
        if docstring and docstring.strip():
            yield docstring.strip()
    for child in ast.iter_child_nodes(node):
        # Definitions are statements, so expressions are not searched.
        if isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from _docstrings_below(child)
