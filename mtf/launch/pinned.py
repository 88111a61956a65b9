"""Lists the packages of this environment with their exact versions, for other machines."""

from __future__ import annotations

import functools
import importlib.metadata
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import mtf
from mtf.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_PROJECT = "mtf-jax"
# Extras for other devices, for developers, or in conflict with others.
_NOT_COPIED = {"beam", "cuda", "dev", "lm-eval", "t5x", "test", "torch", "tpu"}


def pinned_requirements(extras: Collection[str]) -> list[str]:
    """Returns the packages that mtf needs, as `name==version` with the versions installed here.

    The given extras of mtf are included, and those whose packages are all installed here. A package
    that is not installed keeps the range of versions that is allowed.

    Raises:
      UserError: an extra does not exist, or mtf is neither installed nor in a checkout.
    """
    known = _own_extras()
    for extra in extras:
        if extra not in known:
            raise UserError(f"mtf has no extra {extra}.{did_you_mean(extra, known)}")
    offered = known.keys() - _NOT_COPIED - {""}
    installed = [extra for extra in offered if _is_installed(extra)]
    limits: dict[str, str] = {}
    features: dict[str, set[str]] = {}
    waiting = [(_PROJECT, frozenset([*extras, *installed]))]
    seen = set(waiting)
    while waiting:
        for needed in _needs(*waiting.pop()):
            name, version = _name(needed), _version(needed)
            if name == _PROJECT:
                continue
            limits[name] = f"=={version}" if version else str(needed.specifier)
            features.setdefault(name, set()).update(needed.extras)
            node = name, frozenset(needed.extras)
            if version and node not in seen:
                seen.add(node)
                waiting.append(node)
    return [
        name + (f"[{','.join(sorted(features[name]))}]" if features[name] else "") + limits[name]
        for name in sorted(limits)
    ]


@functools.cache
def _own_extras() -> dict[str, list[str]]:
    """Returns what mtf needs: extra → requirements, with those without an extra under ""."""
    file = Path(mtf.__file__).resolve().parents[1] / "pyproject.toml"
    if file.is_file():  # A checkout, which may be newer than what was once installed from it.
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    try:
        extras = importlib.metadata.metadata(_PROJECT).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"{_PROJECT} is not installed here, so the versions to install are unknown. Install it "
            "in this environment: pip install mtf-jax"
        ) from error
    needed = importlib.metadata.requires(_PROJECT) or []
    return dict.fromkeys(("", *extras), needed)  # Markers tell which extra needs what.


def _needs(package: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yields what a package needs on this platform, with extras."""
    from packaging.requirements import Requirement

    if package == _PROJECT:
        own = _own_extras()
        texts = {text: None for extra in ("", *sorted(extras)) for text in own[extra]}
    else:
        texts = dict.fromkeys(importlib.metadata.requires(package) or ())
    for text in texts:
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield needed


def _is_installed(extra: str) -> bool:
    return all(_version(needed) for needed in _needs(_PROJECT, frozenset([extra])))


def _name(needed: Requirement) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(needed.name)


def _version(needed: Requirement) -> str | None:
    try:  # A local version such as 2.13.0+cpu is not on PyPI.
        return importlib.metadata.version(needed.name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
