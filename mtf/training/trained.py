"""Which parameters are trained: all but those that a setting freezes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mtf.checkpoints.finite import flat_names
from mtf.errors import UserError
from mtf.models.stacking import Tree, unstacked_names

_ADAPTER = re.compile(r".*/lora_[ab]")


def frozen_names(shapes: Tree, patterns: Sequence[str], *, only_adapters: bool) -> frozenset[str]:
    """Returns the names of the parameters that are not trained.

    Args:
      shapes: the parameters' shapes, stacked or not.
      patterns: regular expressions, each of which matches the whole names of parameters to freeze;
        each layer has its own names, even if layers are stacked.
      only_adapters: whether the network has LoRA adapters, which alone are trained.

    Raises:
      UserError: a pattern matches nothing, or some layers of a stack only, or nothing is left.
    """
    leaves = flat_names(shapes)
    layers = {name: unstacked_names(name, shape.shape) for name, shape in leaves.items()}
    frozen = {name for name in layers if only_adapters and not _ADAPTER.fullmatch(name)}
    frozen |= {name for name in layers if name.endswith("/lora_scale")}
    for pattern in patterns:
        matched = {
            name: [each for each in own if re.fullmatch(pattern, each)]
            for name, own in layers.items()
        }
        _check_pattern(pattern, layers, matched)
        frozen |= {name for name, own in matched.items() if own}
    if len(frozen) == len(layers):
        raise UserError("trainer.frozen freezes all parameters, so there is nothing to train.")
    return frozenset(frozen)


def _check_pattern(
    pattern: str, layers: Mapping[str, list[str]], matched: Mapping[str, list[str]]
) -> None:
    names = [name for own in layers.values() for name in own]
    if not any(matched.values()):
        tried = [f"{pattern}/.*", f".*/{pattern}", f".*/{pattern}/.*", f".*{pattern}.*"]
        near = next((p for p in tried if any(re.fullmatch(p, name) for name in names)), None)
        hint = f" Did you mean {near!r}?" if near else ""
        raise UserError(
            f"trainer.frozen: no parameter matches {pattern!r}. A pattern must match a whole name, "
            f"such as {names[0]!r}; each layer has its own names, even with scanned layers.{hint}"
        )
    for name, own in matched.items():
        if own and len(own) < len(layers[name]):
            other = next(each for each in layers[name] if each not in own)
            raise UserError(
                f"trainer.frozen: {pattern!r} matches {own[0]}, but not {other}, and both are "
                "layers of one array. To freeze some layers only, set "
                "model.network.scan_layers=False."
            )


def split(tree: Tree, frozen: Collection[str]) -> tuple[Tree, Tree]:
    """Returns the trained and the frozen parts of a tree of parameters, or of axes.

    Together, they have the tree's leaves; nested dicts without leaves are left out.
    """

    def part(tree: Any, prefix: str, wanted: bool) -> Any:
        found = {}
        for key, value in tree.items():
            name = prefix + key
            if not isinstance(value, dict):
                if (name in frozen) == wanted:
                    found[key] = value
            elif below := part(value, f"{name}/", wanted):
                found[key] = below
        return found

    return part(tree, "", False), part(tree, "", True)


def merge(first: Tree, second: Tree) -> Tree:
    """Returns the tree with the leaves of both, the inverse of `split`."""
    both = {key: merge(first[key], second[key]) for key in first.keys() & second.keys()}
    return {**first, **second, **both}
