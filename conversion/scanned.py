"""Presents checkpoints of T5X's scanned network (scalable_t5, umT5) under the unrolled names.

The scanned network stacks the layers of a stack along axis 1 of each array, has one relative
position bias for each layer, and keeps heads and their size apart in the kernels of attention. A
layer is read as a slice of the stacked array.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import tensorstore as ts

from conversion.tensor import Checkpoint, ConversionError, Index, Tensor, index_bounds

# A stacked array is read once for each layer. Its decoded chunks are kept in a cache of this size.
_CACHE_BYTES = 2**30

# The end of a parameter's name → the axes of the stacked array: e for emb, l for layers, h for
# heads, k for the size of a head, m for the MLP, b for buckets. The unrolled network joins h and k.
AXES = {
    "query/kernel": "elhk",
    "key/kernel": "elhk",
    "value/kernel": "elhk",
    "out/kernel": "hlke",
    "wi/kernel": "elm",
    "wi_0/kernel": "elm",
    "wi_1/kernel": "elm",
    "wo/kernel": "mle",
    "scale": "el",
    "relpos_bias/rel_embedding": "hlb",
}
# Slots of Adafactor: the axes that a moment averages over. Unused ones have the shape (1,).
_AVERAGED = {"v_row": "hkm", "v_col": "e", "v": "", "m": ""}
_OTHER_FACTOR = {"v_row": "v_col", "v_col": "v_row"}

_NAME = re.compile(
    rf"(?P<root>.+/)(?P<side>encoder|decoder)/(?P=side)/(?P<parameter>(?:.+/)?(?P<kind>"
    rf"{'|'.join(AXES)}))(?:/(?P<slot>{'|'.join(_AVERAGED)}))?"
)
_STACKED = re.compile(r".+/(encoder/encoder|decoder/decoder)/")


def is_stacked(name: str) -> bool:
    """Returns whether the array of this name has several layers."""
    return _STACKED.match(name) is not None


def new_cache() -> ts.Context:
    """Returns a cache for the chunks of a checkpoint's stacked arrays."""
    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


def unrolled(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint with a tensor for each layer, which is a slice of a stacked one.

    A checkpoint that is not of the scanned network is returned as it is. Raises ConversionError if
    a stacked array has an unknown name or a shape that differs from the others'.
    """
    tensors: dict[str, Tensor] = {}
    depths = _depths(checkpoint)
    for name, tensor in checkpoint.tensors.items():
        if not is_stacked(name):
            tensors[name] = tensor
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            raise ConversionError(
                f"{checkpoint.path}: {name} is stacked as in T5X's scanned network, which has no "
                "parameter of this name."
            )
        side, slot = match["side"], match["slot"]
        target = f"target/{side}/{side}/{match['parameter']}"
        shape = checkpoint.tensors[target].shape if target in checkpoint.tensors else ()
        axes = AXES[match["kind"]]
        if len(shape) != len(axes) or shape[1] != depths[side]:
            raise ConversionError(
                f"{checkpoint.path}: {target} has shape {shape}; expected {len(axes)} dimensions, "
                f"of which the second one is the number of layers ({depths.get(side, 0)})."
            )
        sizes = dict(zip(axes, shape, strict=True))
        is_unused = slot is not None and tensor.shape == (1,)
        kept = "" if is_unused else "".join(x for x in axes if x not in _AVERAGED.get(slot, ""))
        if not is_unused and tensor.shape != tuple(sizes[axis] for axis in kept):
            raise ConversionError(
                f"{checkpoint.path}: {name} has shape {tensor.shape}; expected "
                f"{tuple(sizes[axis] for axis in kept)}, or (1,) if it is not used."
            )
        if not is_unused and slot in _OTHER_FACTOR and _are_swapped(axes, sizes):
            slot = _OTHER_FACTOR[slot]
        for layer in range(depths[side]):
            own = f"{match['root']}{side}/layers_{layer}/{match['parameter']}"
            own += f"/{slot}" if slot else ""
            view = tensor.view(own, transposed=False)
            tensors[own] = view if is_unused else _layer(own, tensor, kept, layer)
    return dataclasses.replace(checkpoint, tensors=tensors, is_scanned=bool(depths))


def _depths(checkpoint: Checkpoint) -> dict[str, int]:
    """Returns the number of layers that most stacked arrays of the encoder and decoder have."""
    counts: dict[str, Counter[int]] = {}
    for name, tensor in checkpoint.parameters().items():
        if is_stacked(f"target/{name}") and len(tensor.shape) > 1:
            counts.setdefault(name.partition("/")[0], Counter())[tensor.shape[1]] += 1
    return {side: count.most_common(1)[0][0] for side, count in counts.items()}


def _are_swapped(axes: str, sizes: dict[str, int]) -> bool:
    """Returns whether the unrolled network calls a kernel's v_row v_col, and v_col v_row.

    Its v_row averages over the larger axis of the kernel, or the last one of a square. That of the
    scanned network always averages over the axes other than emb.
    """
    emb = sizes["e"]
    others = math.prod(sizes[axis] for axis in axes if axis not in "el")
    return emb > others or (emb == others and axes[-1] == "e")


def _layer(name: str, stacked: Tensor, axes: str, layer: int) -> Tensor:
    """Returns a layer of a stacked array, in which the axes of heads and of their size are one."""
    sizes = dict(zip(axes, stacked.shape, strict=True))
    own_axes = axes.replace("l", "").replace("hk", "h")
    head = sizes.get("k", 1)
    shape = tuple(sizes[axis] * (head if axis == "h" else 1) for axis in own_axes)

    def read(index: Index) -> np.ndarray[Any, Any]:
        bounds = dict(zip(own_axes, index_bounds(index, shape), strict=True))
        # The heads that contain the part, and where it begins in the first of them.
        skipped = 0
        wanted = dict(bounds)
        if "k" in sizes:
            start, stop = bounds["h"]
            wanted |= {"h": (start // head, -(-stop // head)), "k": (0, head)}
            skipped = start % head
        wanted["l"] = (layer, layer + 1)
        part = stacked.read(tuple(slice(*wanted[axis]) for axis in axes))
        joined = part.reshape(
            [
                (wanted[axis][1] - wanted[axis][0]) * (head if axis == "h" else 1)
                for axis in own_axes
            ]
        )
        starts = [skipped if axis == "h" else 0 for axis in own_axes]
        ends = [
            start + bounds[axis][1] - bounds[axis][0]
            for axis, start in zip(own_axes, starts, strict=True)
        ]
        return joined[tuple(map(slice, starts, ends))]

    stored = f"{stacked.stored or stacked.name}[:, {layer}]"
    return Tensor(name, shape, stacked.dtype, read, where=stacked.where, stored=stored)
