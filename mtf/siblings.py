"""Imports mtf's packages `recipes` and `conversion` if the user has modules of the same names.

mtf's modules come first, and a name that they lack is looked up in the user's: `recipes.mine` is
`mine` of the user's `recipes.py` or `recipes/__init__.py`, or the module `recipes/mine.py`, and
`recipes.t5.mine` is in the user's `recipes/t5.py`. In this file, "own" means the user's.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("conversion", "recipes")

_ROOT = Path(__file__).resolve().parents[1]
# The user's `recipes.py` is imported as `recipes._own`, `recipes/t5.py` as `recipes._own_t5`.
_OWN = "_own"


def install() -> None:
    """Installs the import hook; raises ImportError if another `conversion` is imported already."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        for name, module in list(sys.modules.items()):  # Modules that were imported before mtf.
            if name.partition(".")[0] in PACKAGES and is_ours(getattr(module, "__file__", None)):
                _fall_back_to_own(module)
    found = sys.modules.get("conversion")
    file = getattr(found, "__file__", None)
    if found is not None and (file is None or Path(file).resolve().parent != _ours("conversion")):
        raise ImportError(
            f"mtf needs its package `conversion`, but another module with this name was "
            f"imported first: {file or found}. Import mtf first, or rename that module."
        )


def is_ours(file: str | Path | None) -> bool:
    """Returns whether a file is a module of mtf's `recipes` or `conversion`."""
    return file is not None and Path(file).resolve().parent in map(_ours, PACKAGES)


def own_folders(package: str) -> list[Path]:
    """Returns the user's folders of that name, in the order of `sys.path`."""
    return [folder for root in _roots(package) if (folder := root / package).is_dir()]


def own_file(package: str, module: str = "") -> Path | None:
    """Returns the user's file of a module; for "", the package's `__init__.py` or `PACKAGE.py`."""
    for root in _roots(package):
        inside = root / package / f"{module or '__init__'}.py"
        for file in (inside,) if module else (inside, root / f"{package}.py"):
            if file.is_file():
                return file
    return None


def own_modules(package: str) -> list[str]:
    """Returns the names of the modules in the user's folders of that name."""
    files = (file for folder in own_folders(package) for file in sorted(folder.glob("*.py")))
    return list(dict.fromkeys(file.stem for file in files if not file.stem.startswith("_")))


def module_name(file: Path) -> str | None:
    """Returns the name under which a file is imported, or None if it is in neither package."""
    file = file.resolve()
    for package in PACKAGES:
        if file.parent == _ours(package):
            return f"{package}.{file.stem}"
        for module in ("", file.stem):
            found = own_file(package, module)
            if found is not None and found.resolve() == file:
                return own_module_name(package, module)
    return None


def own_module_name(package: str, module: str = "") -> str:
    """Returns the name under which `own_file` is imported."""
    if module and not (_ours(package) / f"{module}.py").is_file():
        return f"{package}.{module}"
    return f"{package}.{_OWN}_{module}".removesuffix("_")


def _ours(package: str) -> Path:
    return _ROOT / package


def _roots(package: str) -> list[Path]:
    """Returns the folders to search for the user's modules."""
    if not _ours(package).is_dir():
        return []
    return [root for entry in sys.path if (root := Path(entry or ".").resolve()) != _ROOT]


class _Finder:
    """Finds mtf's modules before the user's."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        if package not in PACKAGES or "." in module:
            return None
        if module == _OWN or module.startswith(f"{_OWN}_"):
            file = own_file(package, module.removeprefix(_OWN).removeprefix("_"))
            return None if file is None else importlib.util.spec_from_file_location(name, file)
        ours = PathFinder.find_spec(name, [str(_ours(package) if module else _ROOT)])
        if ours is None or not isinstance(ours.loader, SourceFileLoader):
            return PathFinder.find_spec(name, list(map(str, own_folders(package))))
        ours.loader = _Loader(ours.loader.name, ours.loader.path)
        return ours


class _Loader(SourceFileLoader):
    """Loads a module of mtf; names that it lacks are looked up in the user's."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _fall_back_to_own(module)


def _fall_back_to_own(module: ModuleType) -> None:
    vars(module)["__getattr__"] = functools.partial(_own_attribute, module.__name__)


def _own_attribute(name: str, attribute: str) -> Any:
    package, _, module = name.partition(".")
    is_submodule = not module and (_ours(package) / f"{attribute}.py").is_file()
    if not (attribute.startswith("__") or is_submodule) and own_file(package, module) is not None:
        own = importlib.import_module(own_module_name(package, module))
        if attribute in vars(own):
            return vars(own)[attribute]
    raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
