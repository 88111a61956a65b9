"""Reads `pytorch_model.bin`, tensor by tensor, without running code of the pickle in it."""

from __future__ import annotations

import pickle
import re
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conversion.tensor import ConversionError, IncompleteCheckpoint, Index, Tensor, reason
from mtf.copies import local_copy
from mtf.storage import AnyPath

_BYTES_BEFORE_MAPPING_ANEW = 256 * 2**20
_DTYPES: dict[str, np.dtype[Any]] = {
    "torch.float32": np.dtype(np.float32),
    "torch.bfloat16": np.dtype(ml_dtypes.bfloat16),
    "torch.float16": np.dtype(np.float16),
}


def open_pytorch(path: AnyPath) -> dict[str, Tensor]:
    """Opens a file with `torch.load(weights_only=True)` and returns its tensors by name.

    Raises:
      ConversionError: if PyTorch is not installed, or the file has something else than tensors.
      IncompleteCheckpoint: if the file is missing, truncated or damaged.
    """
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
    tensors = _Tensors(local_copy(path), path)
    return {name: _tensor(tensors, name, value) for name, value in tensors.get().items()}


class _Tensors:
    """The tensors of a file, which are mapped into memory.

    The file is mapped anew after some bytes have been read, so that their pages leave the memory.
    """

    def __init__(self, file: Path, path: AnyPath):
        self.file, self.path = file, path
        self._tensors: dict[str, Any] = {}
        self._num_read = _BYTES_BEFORE_MAPPING_ANEW
        self._lock = threading.Lock()

    def get(self, num_bytes: int = 0) -> dict[str, Any]:
        """Returns all tensors, of which `num_bytes` will be read."""
        with self._lock:
            self._num_read += num_bytes
            if self._num_read >= _BYTES_BEFORE_MAPPING_ANEW:
                self._tensors = {}
                self._tensors, self._num_read = _load(self.file, self.path), num_bytes
            return self._tensors


def _load(file: Path, path: AnyPath) -> dict[str, Any]:
    """Returns the file's tensors, which are mapped into memory unless the file is of 2020."""
    try:
        import torch
    except ImportError as error:
        raise ConversionError(
            f"Reading {path} needs PyTorch: pip install 'mtf-jax[torch]'."
        ) from error
    try:
        is_zip = zipfile.is_zipfile(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual pickles, which are read or refused
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        found = re.search(r"Unsupported.*?(?=\. |$)|GLOBAL \S+", str(error), re.MULTILINE)
        raise ConversionError(
            f"{path} is not loaded, because its pickle is damaged or contains more than weights, "
            f"which can run code: {found[0] if found else reason(error)}."
        ) from error
    except Exception as error:  # torch.load raises anything for damaged files.
        raise IncompleteCheckpoint(
            f"{path} is truncated or damaged: {type(error).__name__} {reason(error)}."
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()
    ):
        raise ConversionError(f"{path} has something else than a dict from names to tensors.")
    return found


def _tensor(tensors: _Tensors, name: str, value: Any) -> Tensor:
    path = tensors.path
    dtype = _DTYPES.get(str(value.dtype))
    if dtype is None or str(value.layout) != "torch.strided":
        raise ConversionError(
            f"{path}: {name} has type {value.dtype} ({value.layout}); expected one of "
            f"{', '.join(_DTYPES)} (torch.strided)."
        )

    num_bytes = value.numel() * dtype.itemsize

    def read(index: Index) -> np.ndarray[Any, Any]:
        import torch

        part = tensors.get(num_bytes)[name].detach()[index].contiguous()
        if part.dtype == torch.bfloat16:
            return np.array(part.view(torch.int16).numpy()).view(dtype)
        return np.array(part.numpy())

    return Tensor(name, tuple(value.shape), dtype, read, where=str(path))
