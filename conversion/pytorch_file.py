"""Reads `pytorch_model.bin` tensor by tensor, without running code that its pickle may contain."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conversion.tensor import ConversionError, IncompleteCheckpoint, Index, Tensor, damaged, reason
from mtf.storage import AnyPath
from mtf.storage.copies import local_copy

_DTYPES: dict[str, np.dtype[Any]] = {
    "torch.float32": np.dtype(np.float32),
    "torch.bfloat16": np.dtype(ml_dtypes.bfloat16),
    "torch.float16": np.dtype(np.float16),
}


def open_pytorch(path: AnyPath) -> dict[str, Tensor]:
    """Opens a file with `torch.load(weights_only=True)`; returns a dict mapping names to tensors.

    Raises:
      ConversionError: PyTorch is not installed, or the file contains anything other than tensors.
      IncompleteCheckpoint: the file is missing, truncated or damaged.
    """
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} has no file {path.name}.")
    tensors = _load(local_copy(path), path)
    return {name: _tensor(path, name, value) for name, value in tensors.items()}


def _load(file: Path, path: AnyPath) -> dict[str, Any]:
    """Returns a dict mapping names to tensors; memory-maps files of PyTorch 1.6 or later."""
    try:
        import torch
    except ImportError as error:
        raise ConversionError(
            f"Reading {path} needs PyTorch. Run: pip install 'mtf-jax[torch]'"
        ) from error
    with damaged(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Unsafe pickles raise errors in any case.
        is_zip = zipfile.is_zipfile(file)
        try:
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
        except pickle.UnpicklingError as error:
            found = re.search(r"Unsupported.*?(?=\. |$)|GLOBAL \S+", str(error), re.MULTILINE)
            raise ConversionError(
                f"{path} was not loaded, because its pickle is damaged or contains objects other "
                f"than weights, which could run code: {found[0] if found else reason(error)}."
            ) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()
    ):
        raise ConversionError(f"{path} does not contain a dict that maps names to tensors.")
    return found


def _tensor(path: AnyPath, name: str, value: Any) -> Tensor:
    dtype = _DTYPES.get(str(value.dtype))
    if dtype is None or str(value.layout) != "torch.strided":
        raise ConversionError(
            f"{path}: {name} has type {value.dtype} ({value.layout}); expected one of "
            f"{', '.join(_DTYPES)} (torch.strided)."
        )

    def read(index: Index) -> np.ndarray[Any, Any]:
        import torch

        part = value.detach()[index].contiguous()
        if part.dtype == torch.bfloat16:
            return np.array(part.view(torch.int16).numpy()).view(dtype)
        return np.array(part.numpy())

    return Tensor(name, tuple(value.shape), dtype, read, where=str(path))
