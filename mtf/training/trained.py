"""Splits trees of parameters into the trained and the frozen parameters."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from flax.traverse_util import flatten_dict, unflatten_dict

from mtf.base.errors import UserError
from mtf.checkpoints.finite import flat_names
from mtf.models.stacking import Tree, unstacked_names

_ADAPTER = re.compile(r".*/lora_[ab]")


def frozen_names(shapes: Tree, patterns: Sequence[str], *, only_adapters: bool) -> frozenset[str]:
    """Returns the names of the parameters that are not trained.

    Args:
      shapes: the shapes of the parameters, whose layers may be stacked.
      patterns: regular expressions that match the full names of the parameters to freeze. Each
        layer has its own names, even if the layers are stacked.
      only_adapters: whether only LoRA adapters are trained.

    Raises:
      UserError: a pattern matches no parameter or only some layers of a stack, or all parameters
        are frozen.
    """
    leaves = flat_names(shapes)
    layers = {name: unstacked_names(name, shape.shape) for name, shape in leaves.items()}
    frozen = {name for name in layers if only_adapters and not _ADAPTER.fullmatch(name)}
    frozen |= {name for name in layers if name.endswith("/lora_scale")}
    for pattern in patterns:
        matched = {
            name: [each for each in names if re.fullmatch(pattern, each)]
            for name, names in layers.items()
        }
        _check_pattern(pattern, layers, matched)
        frozen |= {name for name, found in matched.items() if found}
    if len(frozen) == len(layers):
        raise UserError("trainer.frozen freezes all parameters, so there is nothing to train.")
    return frozenset(frozen)


def _check_pattern(
    pattern: str, layers: Mapping[str, list[str]], matched: Mapping[str, list[str]]
) -> None:
    names = [name for each in layers.values() for name in each]
    if not any(matched.values()):
        tried = [f"{pattern}/.*", f".*/{pattern}", f".*/{pattern}/.*", f".*{pattern}.*"]
        near = next((p for p in tried if any(re.fullmatch(p, name) for name in names)), None)
        hint = f" Did you mean {near!r}?" if near else ""
        raise UserError(
            f"trainer.frozen: no parameter matches {pattern!r}. A pattern must match a full name, "
            f"such as {names[0]!r}. Each layer has its own names, even if layers are scanned.{hint}"
        )
    for name, found in matched.items():
        if found and len(found) < len(layers[name]):
            other = next(each for each in layers[name] if each not in found)
            raise UserError(
                f"trainer.frozen: {pattern!r} matches {found[0]} but not {other}, although both "
                "are stored in one array. To freeze only some layers, set "
                "model.network.scan_layers=False."
            )


def split(tree: Tree, frozen: Collection[str]) -> tuple[Tree, Tree]:
    """Returns the trained part and the frozen part of a tree of parameters or of their axes.

    Each leaf is in exactly one part. Nested dicts without leaves are omitted.
    """
    leaves = flatten_dict(tree, sep="/")
    kept = {name: leaf for name, leaf in leaves.items() if name in frozen}
    trained = {name: leaf for name, leaf in leaves.items() if name not in frozen}
    return unflatten_dict(trained, sep="/"), unflatten_dict(kept, sep="/")


def merge(first: Tree, second: Tree) -> Tree:
    """Returns a tree with the leaves of both trees; this is the inverse of `split`."""
    return unflatten_dict(flatten_dict(first) | flatten_dict(second))
