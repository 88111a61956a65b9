"""Lists the packages that mtf and its extras require, and their installed versions."""

from __future__ import annotations

import functools
import importlib.metadata
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from mtf.base.errors import UserError

PROJECT = "mtf-jax"


@functools.cache
def own_extras() -> dict[str, list[str]]:
    """Returns a dict mapping mtf's extras to their requirements; the key "" is for mtf itself."""
    file = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if file.is_file():  # In a checkout, this file may be newer than the installed metadata.
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    try:
        extras = importlib.metadata.metadata(PROJECT).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"{PROJECT} is not installed in this environment, so the versions to install are "
            "unknown. Run: pip install mtf-jax"
        ) from error
    needed = importlib.metadata.requires(PROJECT) or []
    return dict.fromkeys(("", *extras), needed)  # `needs` evaluates the markers.


def needs(extra: str) -> Iterator[Requirement]:
    """Yields mtf's requirements on this platform, including those of an extra."""
    own = own_extras()
    for text in dict.fromkeys((*own[""], *own[extra])):
        needed = Requirement(text)
        if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in ("", extra)):
            yield needed


def installed_version(needed: Requirement) -> str | None:
    """Returns the installed version of a required package, or None if it is not installed."""
    try:  # PyPI has no local versions such as 2.13.0+cpu.
        return importlib.metadata.version(needed.name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
