"""Finds out which of the packages that mtf and its extras require are not installed."""

from __future__ import annotations

import functools
import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = "mtf-jax"


@functools.cache
def own_extras() -> dict[str, list[str]]:
    """Returns a dict mapping mtf's extras to their requirements; the key "" is for mtf itself."""
    file = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if file.is_file():  # In a checkout, this file may be newer than the installed metadata.
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    extras = importlib.metadata.metadata(PROJECT).get_all("Provides-Extra") or []
    needed = importlib.metadata.requires(PROJECT) or []
    return dict.fromkeys(("", *extras), needed)  # `missing` evaluates the markers.


def missing(extra: str) -> list[str]:
    """Returns those of mtf's requirements on this platform, with an extra, that are not met."""
    own, found = own_extras(), []
    for text in dict.fromkeys((*own[""], *own[extra])):
        needed = Requirement(text)
        if needed.marker and not any(needed.marker.evaluate({"extra": e}) for e in ("", extra)):
            continue
        try:
            is_met = needed.specifier.contains(importlib.metadata.version(needed.name), True)
        except importlib.metadata.PackageNotFoundError:
            is_met = needed.name == PROJECT  # The extra contains other extras.
        if not is_met:
            found.append(str(needed))
    return found
