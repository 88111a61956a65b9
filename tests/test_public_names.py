"""`dir(mtf)` shows what users may use, and all of it works after `import mtf`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mtf
from tests.small import python

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
SHOWN = {name for name in dir(mtf) if not name.startswith("_")}


def printed(code: str) -> list[str]:
    """Words that a fresh process prints."""
    return python("-c", code).stdout.split()


def exports(package: Path) -> bool:
    """Whether the `__init__.py` of a package has an `__all__`."""
    return any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for node in ast.parse((package / "__init__.py").read_text()).body
    )


def test_it_shows_the_packages_that_export_something_and_no_imports() -> None:
    packages = {init.parent for init in (ROOT / "mtf").glob("*/__init__.py")}
    assert {package.name for package in packages if exports(package)} <= SHOWN
    assert {"load", "builders", "jobs", "t5x"} <= SHOWN
    assert {"load", "UserError"} | {package.name for package in packages} >= SHOWN


def test_it_shows_what_the_pages_use() -> None:
    python = [
        block
        for page in PAGES
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    ]
    used = {
        match[1] or match[2] or match[3]
        for block in python
        for match in re.finditer(
            r"^from mtf import (\w+)|^from mtf\.(\w+)|\bmtf\.(\w+)", block, re.M
        )
    }
    assert {"load", "builders", "data"} <= used
    assert used <= SHOWN


def test_each_dotted_name_in_the_pages_is_there_after_import_mtf() -> None:
    dotted = re.compile(r"(?<![\w./-])mtf(?:\.[A-Za-z_]\w*)+(?!\.?\w|/)")
    pages = [*PAGES, *(ROOT / "docs/gallery").glob("*.md")]
    names = {name for page in pages for name in dotted.findall(page.read_text())}
    commands = {f"mtf.{file.stem}" for file in (ROOT / "mtf").glob("*.py")}
    # Importing these modules of mtf.t5x needs T5X.
    names = {each for each in names - commands if not re.match(r"mtf\.t5x\.\w+\.", each)}
    assert {"mtf.load", "mtf.evaluation.metrics.compute", "mtf.inference.api.Sample"} <= names
    assert printed("import mtf\n" + "\n".join(sorted(names))) == []


def test_each_name_is_there_after_import_mtf() -> None:
    classes = {"load", "UserError"}
    code = "import mtf\nprint(mtf.builders.model.t5_1_1('small').network.emb_dim)\n"
    size, *names = printed(f"{code}for name in mtf.__all__: print(getattr(mtf, name).__name__)")
    assert size == "512"
    assert set(names) == {f"mtf.{name}" for name in SHOWN - classes} | classes


def test_showing_the_names_imports_none_of_them() -> None:
    code = "import mtf, sys\ndir(mtf)\nprint(*sys.modules)"
    loaded = set(printed(code))
    assert "mtf" in loaded
    assert not loaded & ({"jax", "numpy", "fiddle"} | {f"mtf.{name}" for name in SHOWN})
