"""Prepares the import of T5X. Modules that need T5X import this one first."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from mtf.errors import UserError

# The commit whose behavior docs/t5x.md describes.
COMMIT = "cc342d419ec3e3e9c4bf1df33c82330cafdc1e16"
# What is not on PyPI; `--no-deps`, because T5X requires the heads of flax, optax and seqio.
INSTALL = (
    "pip install 'mtf-jax[t5x]'",
    f"pip install --no-deps 't5x @ git+https://github.com/google-research/t5x@{COMMIT}' "
    "'airio @ git+https://github.com/google/airio' "
    "'clu @ git+https://github.com/google/CommonLoopUtils'",
)


def is_installed() -> bool:
    """Returns whether T5X is installed, without importing it."""
    spec = None if "t5x" in sys.modules else importlib.util.find_spec("t5x")
    # A directory of that name without code, such as that of a converted checkpoint, has no origin.
    return "t5x" in sys.modules or (spec is not None and spec.origin is not None)


def check_installed() -> None:
    """Raises UserError with the command that installs T5X, if it is not installed."""
    if not is_installed():
        commands = "".join(f"\n  {command}" for command in INSTALL)
        raise UserError(
            "--engine t5x needs T5X, which is not installed and not on PyPI. Install commit "
            f"{COMMIT[:7]}, with which mtf is tested:{commands}"
        )


@contextlib.contextmanager
def _output_hidden() -> Iterator[None]:
    """Hides what C++ libraries print while they are imported, unless the import fails."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(saved, 2)
            hidden.seek(0)
            sys.stderr.write(hidden.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _prepare() -> None:
    """Makes T5X importable with today's JAX, and TensorFlow quiet."""
    check_installed()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import jax
    import jax.experimental.pjit

    # T5X still reads the class from its former module.
    jax.experimental.pjit.PartitionSpec = jax.sharding.PartitionSpec  # type: ignore[attr-defined]
    with _output_hidden():
        checkpoints = importlib.import_module("t5x.checkpoints")
    manager = checkpoints.OrbaxCheckpointManagerInterface
    manager.restore = _without_data_of_others(manager.restore)


def _without_data_of_others(restore: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method that restores the position in the data only from a run's own directory.

    If T5X saves this position, it also expects one in the initial checkpoint of a run.
    """

    @functools.wraps(restore)
    def changed(manager: Any, *args: Any, path: Any = None, **kwargs: Any) -> Any:
        wanted = manager._should_write_dataset_ckpt
        if path is not None and os.path.dirname(os.fspath(path)) != os.fspath(manager.directory):
            manager._should_write_dataset_ckpt = False
        try:
            return restore(manager, *args, path=path, **kwargs)
        finally:
            manager._should_write_dataset_ckpt = wanted

    return changed


_prepare()
