"""Reads an export back and compares it with what was to be written, bit by bit."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from conversion.blocks import contiguous, in_order
from conversion.tensor import Index, Tensor

_Array = np.ndarray[Any, Any]


class _Part(NamedTuple):
    """A part of a tensor, with the digest of its values."""

    place: Index
    num_bytes: int
    digest: bytes


class Written:
    """Digests of the parts of tensors, taken while the parts are written.

    The values themselves are not kept. Nor are they computed again for the comparison, because the
    product of LoRA adapters is rounded differently if it is computed in other parts.
    """

    def __init__(self, dtype: np.dtype[Any] | None = None):
        """Creates an empty record of tensors written as `dtype` (None: their own types)."""
        self._dtype, self._parts = dtype, dict[str, list[_Part]]()

    def add(self, name: str, index: Index, array: _Array) -> None:
        """Records a part of a tensor; several threads may call this method."""
        self._parts.setdefault(name, []).append(_part(index, array, self._dtype or array.dtype))

    def differences(self, found: Mapping[str, Tensor]) -> list[str]:
        """Returns the names of the tensors that differ from those read back, in sorted order.

        Raises ConversionError if a tensor cannot be read.
        """
        differ = {
            name
            for name in self._parts.keys() | found.keys()
            if name not in found
            or sum(part.num_bytes for part in self._parts.get(name, ())) != found[name].nbytes
        }

        def jobs() -> Iterator[tuple[int, Callable[[], str | None]]]:
            for name in self._parts.keys() - differ:
                for part in self._parts[name]:
                    yield part.num_bytes, functools.partial(_differs, found[name], part)

        return sorted(differ.union(name for name in in_order(jobs()) if name))


def _part(index: Index, array: _Array, dtype: np.dtype[Any]) -> _Part:
    content = contiguous(array, dtype).reshape(-1).view(np.uint8)
    return _Part(index, content.nbytes, hashlib.sha256(content.data).digest())


def _differs(tensor: Tensor, part: _Part) -> str | None:
    """Returns the tensor's name if the values of a part differ, otherwise None."""
    found = _part(part.place, tensor.read(part.place), tensor.dtype)
    return None if found == part else tensor.name
