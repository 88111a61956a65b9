"""Train, evaluate and export T5-family encoder-decoder models in JAX."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _is_command() -> bool:
    """Returns whether this process was started as `python -m mtf…` or `mtf`."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    if program == "-m":  # Python is looking for the module of `python -m MODULE`.
        module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
        return module.partition(".")[0] == "mtf"
    return os.path.basename(program) == "mtf"


def _stop(number: int, frame: FrameType | None) -> None:
    """Ends a command on Ctrl-C before `mtf.signals` can do so."""
    os.write(2, b"Interrupted.\n")
    os._exit(128 + number)


# Before the other imports, during which Ctrl-C would print a traceback.
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)

import importlib  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from mtf import siblings  # noqa: E402

if TYPE_CHECKING:
    from mtf import builders as builders
    from mtf import checkpoints as checkpoints
    from mtf import config as config
    from mtf import data as data
    from mtf import decoding as decoding
    from mtf import errors as errors
    from mtf import evaluation as evaluation
    from mtf import inference as inference
    from mtf import jobs as jobs
    from mtf import models as models
    from mtf import partitioning as partitioning
    from mtf import seqio as seqio
    from mtf import sweep as sweep
    from mtf import t5x as t5x
    from mtf import tasks as tasks
    from mtf import trackers as trackers
    from mtf import training as training
    from mtf.inference.api import load as load

__all__ = [
    "builders",
    "checkpoints",
    "config",
    "data",
    "decoding",
    "errors",
    "evaluation",
    "inference",
    "jobs",
    "load",
    "models",
    "partitioning",
    "seqio",
    "sweep",
    "t5x",
    "tasks",
    "trackers",
    "training",
]
__version__ = "0.1.0"

siblings.install()


def __getattr__(name: str) -> object:
    """Imports `mtf.load`, which needs JAX, and mtf's packages at first use."""
    if name == "load":
        from mtf.inference.api import load

        return load
    if name in __all__:
        return importlib.import_module(f"mtf.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns what users may use, and not what this module imports."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
