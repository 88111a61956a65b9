"""Reads `pytorch_model.bin`, tensor by tensor, without running code of the pickle in it."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conversion.tensor import ConversionError, IncompleteCheckpoint, Index, Tensor
from mtf.copies import local_copy
from mtf.storage import AnyPath

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
    file = local_copy(path)
    return {name: _tensor(file, path, name, value) for name, value in _load(file, path).items()}


def _load(file: Path, path: AnyPath) -> dict[str, Any]:
    """Returns the file's tensors, which are mapped into memory unless the file is of 2020."""
    try:
        import torch
    except ImportError as error:
        raise ConversionError(
            f"Reading {path} needs PyTorch: pip install 'mtf-jax[torch]'."
        ) from error
    is_zip = zipfile.is_zipfile(file)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0] if str(error) else "it is damaged"
        raise ConversionError(
            f"{path} is not loaded, because its pickle is damaged or contains more than weights, "
            f"which can run code: {_cause(error, reason)}"
        ) from error
    except Exception as error:  # torch.load raises anything for damaged files.
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise IncompleteCheckpoint(f"{path} is truncated or damaged: {reason}") from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()
    ):
        raise ConversionError(f"{path} has something else than a dict from names to tensors.")
    return found


def _cause(error: Exception, default: str) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), default)


def _tensor(file: Path, path: AnyPath, name: str, value: Any) -> Tensor:
    dtype = _DTYPES.get(str(value.dtype))
    if dtype is None:
        raise ConversionError(
            f"{path}: {name} has type {value.dtype}; expected one of {', '.join(_DTYPES)}."
        )

    def read(index: Index) -> np.ndarray[Any, Any]:
        import torch

        # The file is mapped anew for each tensor, so that pages of others leave the memory.
        part = _load(file, path)[name].detach()[index].contiguous()
        if part.dtype == torch.bfloat16:
            return np.array(part.view(torch.int16).numpy()).view(dtype)
        return np.array(part.numpy())

    return Tensor(name, tuple(value.shape), dtype, read)
