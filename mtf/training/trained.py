"""Splits trees of parameters into the trained and the frozen parameters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence

from mtf.base.checks import check_matches
from mtf.base.errors import UserError
from mtf.models.stacking import unstacked_names
from mtf.models.trees import Tree, flat_names, nested

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
    check_matches("trainer.frozen", "parameter", patterns, [*itertools.chain(*layers.values())])
    for pattern, (name, names) in itertools.product(patterns, layers.items()):
        matched = [each for each in names if re.fullmatch(pattern, each)]
        if matched and len(matched) < len(names):
            other = next(each for each in names if each not in matched)
            raise UserError(
                f"trainer.frozen: {pattern!r} matches {matched[0]} but not {other}, although both "
                "are stored in one array. To freeze only some layers, set "
                "model.network.scan_layers=False."
            )
        if matched:
            frozen.add(name)
    if len(frozen) == len(layers):
        raise UserError("trainer.frozen freezes all parameters, so there is nothing to train.")
    return frozenset(frozen)


def split(tree: Tree, frozen: Collection[str]) -> tuple[Tree, Tree]:
    """Returns the trained part and the frozen part of a tree of parameters or of their axes.

    Each leaf is in exactly one part. Nested dicts without leaves are omitted.
    """
    if not frozen:
        return tree, {}
    leaves = flat_names(tree)
    kept = {name: leaf for name, leaf in leaves.items() if name in frozen}
    trained = {name: leaf for name, leaf in leaves.items() if name not in frozen}
    return nested(trained), nested(kept)
