"""Lists the packages of this environment with their exact versions, for other machines."""

from __future__ import annotations

from collections.abc import Collection

from mtf.errors import UserError, did_you_mean
from mtf.requirements import PROJECT, canonical_name, installed_version, needs, own_extras

# Extras for other devices, for developers, or in conflict with others.
_NOT_COPIED = {"beam", "cuda", "dev", "docs", "lm-eval", "t5x", "test", "torch", "tpu"}


def pinned_requirements(extras: Collection[str]) -> list[str]:
    """Returns the packages that mtf needs, as `name==version` with the versions installed here.

    The given extras of mtf are included, and those whose packages are all installed here. A package
    that is not installed keeps the range of versions that is allowed.

    Raises:
      UserError: an extra does not exist, or mtf is neither installed nor in a checkout.
    """
    known = own_extras()
    for extra in extras:
        if extra not in known:
            raise UserError(f"mtf has no extra {extra}.{did_you_mean(extra, known)}")
    offered = known.keys() - _NOT_COPIED - {""}
    installed = [extra for extra in offered if _is_installed(extra)]
    limits: dict[str, str] = {}
    features: dict[str, set[str]] = {}
    waiting = [(PROJECT, frozenset([*extras, *installed]))]
    seen = set(waiting)
    while waiting:
        for needed in needs(*waiting.pop()):
            name, version = canonical_name(needed), installed_version(needed)
            if name == PROJECT:
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


def _is_installed(extra: str) -> bool:
    return all(installed_version(needed) for needed in needs(PROJECT, frozenset([extra])))
