"""Merges the LoRA adapters in mtf checkpoints into the kernels that they adapt.

An adapter consists of `lora_a` of shape (in, rank), `lora_b` of shape (rank, out) and the scalar
`lora_scale`. The merged kernel is kernel + lora_scale · lora_a @ lora_b (Hu et al. 2021).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from conversion.tensor import Checkpoint, ConversionError, Index, Tensor

NAMES = ("lora_a", "lora_b", "lora_scale")


def has_adapters(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint has adapters that have not been merged."""
    return bool(_roots(checkpoint))


def merged(checkpoint: Checkpoint) -> Checkpoint:
    """Returns a checkpoint that merges each kernel with its adapter when the kernel is read.

    The result omits the moving averages and the optimizer state of the adapters. Raises
    ConversionError if a part of an adapter is missing.
    """
    if not has_adapters(checkpoint):
        return checkpoint
    kept = (name for name in checkpoint.tensors if set(NAMES).isdisjoint(name.split("/")))
    parts = {name: checkpoint.tensors[name] for name in kept}
    adapted = _roots(checkpoint)
    parts |= {f"{root}/kernel": _merged_kernel(checkpoint, root) for root in adapted}
    return dataclasses.replace(checkpoint, tensors=parts, num_merged=len(adapted))


def _roots(checkpoint: Checkpoint) -> list[str]:
    """Returns the name prefix of each adapter, such as "target/encoder/layers_0/mlp/wo"."""
    suffix = "/lora_a"
    names = (name for name in checkpoint.tensors if name.startswith("target/"))
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def _merged_kernel(checkpoint: Checkpoint, root: str) -> Tensor:
    names = ("kernel", *NAMES)
    found = [checkpoint.tensors.get(f"{root}/{name}") for name in names]
    missing = [name for name, tensor in zip(names, found, strict=True) if tensor is None]
    if missing:
        raise ConversionError(
            f"{checkpoint.path}: the adapter {root} lacks {', '.join(missing)}. The checkpoint is "
            "incomplete."
        )
    kernel, a, b, scale = (tensor for tensor in found if tensor is not None)

    def read(index: Index) -> np.ndarray[Any, Any]:
        rows, columns = (*(() if index is ... else index), slice(None), slice(None))[:2]
        low, high = (
            x.astype(np.float32) for x in (a.read((rows,)), b.read((slice(None), columns)))
        )
        delta = np.float32(scale.read()) * (low @ high)
        return np.asarray(kernel.read(index).astype(np.float32) + delta, kernel.dtype)

    return dataclasses.replace(kernel, _reader=read)
