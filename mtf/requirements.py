"""Lists what mtf needs, by extra, and what of it is installed."""

from __future__ import annotations

import functools
import importlib.metadata
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mtf.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PROJECT = "mtf-jax"


@functools.cache
def own_extras() -> dict[str, list[str]]:
    """Returns what mtf needs: extra → requirements, with those without an extra under ""."""
    file = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if file.is_file():  # A checkout, which may be newer than what was once installed from it.
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    try:
        extras = importlib.metadata.metadata(PROJECT).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"{PROJECT} is not installed here, so the versions to install are unknown. Install it "
            "in this environment: pip install mtf-jax"
        ) from error
    needed = importlib.metadata.requires(PROJECT) or []
    return dict.fromkeys(("", *extras), needed)  # Markers tell which extra needs what.


def needs(package: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yields what a package needs on this platform, with extras."""
    from packaging.requirements import Requirement

    if package == PROJECT:
        own = own_extras()
        texts = {text: None for extra in ("", *sorted(extras)) for text in own[extra]}
    else:
        texts = dict.fromkeys(importlib.metadata.requires(package) or ())
    for text in texts:
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield needed


def canonical_name(needed: Requirement) -> str:
    """Returns the name of a package in the form that does not depend on how it is written."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(needed.name)


def installed_version(needed: Requirement) -> str | None:
    """Returns the version of a package here, or None if it is not installed."""
    try:  # A local version such as 2.13.0+cpu is not on PyPI.
        return importlib.metadata.version(needed.name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
