"""Converts checkpoints of T5X's scanned network (scalable_t5, umT5) to the unrolled layout.

In the scanned network, each array contains all layers of the encoder or decoder along axis 1, each
layer has a relative position bias, and attention kernels have separate axes for heads and head
size. A layer is read as a slice of the stacked array.
"""

from __future__ import annotations

import dataclasses
import math
import re
from statistics import mode
from typing import Any

import numpy as np
import tensorstore as ts

from conversion.tensor import Checkpoint, ConversionError, Index, Tensor, index_bounds

# The size in bytes of the cache for decoded chunks, which are read again for each layer.
_CACHE_BYTES = 2**30

# Suffix of a parameter's name → axes of the stacked array. The letters stand for emb (e), layers
# (l), heads (h), the head size (k), MLP (m) and buckets (b). The unrolled network merges h and k.
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
# Adafactor's slot → axes over which it is averaged. Unused slots have the shape (1,).
_AVERAGED = {"v_row": "hkm", "v_col": "e", "v": "", "m": ""}
_OTHER_FACTOR = {"v_row": "v_col", "v_col": "v_row"}

_NAME = re.compile(
    rf"(?P<root>.+/)(?P<side>encoder|decoder)/(?P=side)/(?P<parameter>(?:.+/)?(?P<kind>"
    rf"{'|'.join(AXES)}))(?:/(?P<slot>{'|'.join(_AVERAGED)}))?"
)
_STACKED = re.compile(r".+/(encoder/encoder|decoder/decoder)/")


def is_stacked(name: str) -> bool:
    """Returns whether the array with this name contains several layers."""
    return _STACKED.match(name) is not None


def new_cache() -> ts.Context:
    """Returns a TensorStore context with a cache for the chunks of stacked arrays."""
    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


def unrolled(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint with each stacked array replaced by one tensor per layer.

    A checkpoint without stacked arrays is returned unchanged. Raises ConversionError if a stacked
    array has an unknown name, or a shape that is inconsistent with the other arrays.
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
    """Returns a dict mapping "encoder" and "decoder" to their numbers of layers.

    Each number is the most frequent one among the stacked arrays, so that a wrong array can be
    detected.
    """
    depths: dict[str, list[int]] = {}
    for name, tensor in checkpoint.parameters().items():
        if is_stacked(f"target/{name}") and len(tensor.shape) > 1:
            depths.setdefault(name.partition("/")[0], []).append(tensor.shape[1])
    return {side: mode(found) for side, found in depths.items()}


def _are_swapped(axes: str, sizes: dict[str, int]) -> bool:
    """Returns whether a kernel's slots v_row and v_col are swapped in the unrolled network.

    In the unrolled network, v_row is averaged over the larger axis, or the last axis of a square
    kernel. In the scanned network, it is always averaged over all axes except emb.
    """
    emb = sizes["e"]
    others = math.prod(sizes[axis] for axis in axes if axis not in "el")
    return emb > others or (emb == others and axes[-1] == "e")


def _layer(name: str, stacked: Tensor, axes: str, layer: int) -> Tensor:
    """Returns one layer of a stacked array, with the axes for heads and head size merged."""
    sizes = dict(zip(axes, stacked.shape, strict=True))
    own_axes = axes.replace("l", "").replace("hk", "h")
    head = sizes.get("k", 1)
    shape = tuple(sizes[axis] * (head if axis == "h" else 1) for axis in own_axes)

    def read(index: Index) -> np.ndarray[Any, Any]:
        bounds = dict(zip(own_axes, index_bounds(index, shape), strict=True))
        # Each head is read as a whole.
        whole = {
            axis: (start // head * head, -(-stop // head) * head) if axis == "h" else (start, stop)
            for axis, (start, stop) in bounds.items()
        }
        part = {axis: slice(*bound) for axis, bound in whole.items()}
        part |= {"l": slice(layer, layer + 1), "k": slice(0, head)}
        if "h" in part:
            part["h"] = slice(part["h"].start // head, part["h"].stop // head)
        array = stacked.read(tuple(part[axis] for axis in axes))
        merged = array.reshape([stop - start for start, stop in whole.values()])
        skipped = {axis: start for axis, (start, _) in whole.items()}
        return merged[
            tuple(slice(i - skipped[axis], j - skipped[axis]) for axis, (i, j) in bounds.items())
        ]

    stored = f"{stacked.stored or stacked.name}[:, {layer}]"
    return Tensor(name, shape, stacked.dtype, read, where=stacked.where, stored=stored)
