"""Makes T5X importable. Modules that import T5X must import this module first."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from mtf.base.errors import UserError

# The commit of T5X that docs/t5x.md describes.
COMMIT = "cc342d419ec3e3e9c4bf1df33c82330cafdc1e16"
# The second command installs packages that are not on PyPI. It uses `--no-deps`, because T5X
# requires the latest commits of flax, optax and seqio.
INSTALL = (
    "pip install 'mtf-jax[t5x]'",
    f"pip install --no-deps 't5x @ git+https://github.com/google-research/t5x@{COMMIT}' "
    "'airio @ git+https://github.com/google/airio' "
    "'clu @ git+https://github.com/google/CommonLoopUtils'",
)


def check_installed() -> None:
    """Raises UserError if T5X is not installed; the message shows how to install it."""
    if "t5x" in sys.modules:
        return
    spec = importlib.util.find_spec("t5x")
    # If a directory `t5x` contains no code (but a checkpoint, for example), its spec has no origin.
    if spec is None or spec.origin is None:
        commands = "".join(f"\n  {command}" for command in INSTALL)
        raise UserError(
            "--engine t5x needs T5X, which is not installed and is not on PyPI. Install commit "
            f"{COMMIT[:7]}, with which mtf is tested:{commands}"
        )


def _prepare() -> None:
    """Makes T5X importable with current versions of JAX."""
    check_installed()
    import jax
    import jax.experimental.pjit

    # T5X still looks up this class in the module that defined it in older versions of JAX.
    jax.experimental.pjit.PartitionSpec = jax.sharding.PartitionSpec  # type: ignore[attr-defined]
    checkpoints = importlib.import_module("t5x.checkpoints")
    manager = checkpoints.OrbaxCheckpointManagerInterface
    manager.restore = _without_data_of_others(manager.restore)


def _without_data_of_others(restore: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `restore` to restore the data iterator only from checkpoints of the run itself.

    If T5X saves the state of the data iterator, it also expects such a state in the checkpoint from
    which a run starts.
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
