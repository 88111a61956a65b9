"""Train, evaluate and export T5-family encoder-decoder models in JAX."""

from __future__ import annotations

import importlib
import os
import sys

# XLA, JAX and TensorFlow would print messages for their own developers, such as "Very slow
# compile?" and how TensorFlow looked for GPUs. Errors that matter are raised.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Importing `TYPE_CHECKING` from `typing` would delay the handling of Ctrl-C.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from mtf import builders as builders
    from mtf import checkpoints as checkpoints
    from mtf import config as config
    from mtf import data as data
    from mtf import evaluation as evaluation
    from mtf import inference as inference
    from mtf import jobs as jobs
    from mtf import models as models
    from mtf import partitioning as partitioning
    from mtf import t5x as t5x
    from mtf import training as training
    from mtf.base.errors import UserError as UserError
    from mtf.inference.api import load as load

__all__ = [
    "UserError",
    "builders",
    "checkpoints",
    "config",
    "data",
    "evaluation",
    "inference",
    "jobs",
    "load",
    "models",
    "partitioning",
    "t5x",
    "training",
]
__version__ = "0.1.0"
_DEFINED_IN = {"load": "mtf.inference.api", "UserError": "mtf.base.errors"}


def __getattr__(name: str) -> object:
    """Returns the public object called `name`; imports the object's module on first use."""
    if name in _DEFINED_IN:
        from mtf.base.progress import waiting  # `import mtf` alone imports no module of mtf.

        with waiting(f"importing mtf.{name}", shown=sys.stderr.isatty()):
            return getattr(importlib.import_module(_DEFINED_IN[name]), name)
    if name in __all__:
        return importlib.import_module(f"mtf.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names and the special names (`__…__`), sorted."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
