"""Makes T5X importable. Modules that import T5X must import this module first."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from mtf.base.errors import UserError

# Package → its repository and the commit with which mtf is tested.
COMMITS = {
    "t5x": ("google-research/t5x", "cc342d419ec3e3e9c4bf1df33c82330cafdc1e16"),
    "airio": ("google/airio", "69897df7d9a427b947a9f7bb4164c7782b43e601"),
    "clu": ("google/CommonLoopUtils", "04ad2f9edbd5c80f2307746d15a947fea43cb5e5"),
}
# The second command uses `--no-deps`, because T5X requires the latest commits of flax, optax and
# seqio, and `--force-reinstall`, because pip would keep PyPI's clu, which has the same version.
INSTALL = (
    "pip install 'mtf-jax[t5x]'",
    "pip install --force-reinstall --no-deps "
    + " ".join(f"'{n} @ git+https://github.com/{repo}@{c}'" for n, (repo, c) in COMMITS.items()),
)


def check_installed() -> None:
    """Raises UserError unless T5X, airio and clu are installed at the commits in `COMMITS`.

    A package that pip did not install from a repository, such as a checkout, has no commit, and is
    accepted.
    """
    if "t5x" in sys.modules:
        return
    commands = "".join(f"\n  {command}" for command in INSTALL)
    for name, (_, commit) in COMMITS.items():
        spec = importlib.util.find_spec(name)
        # If a directory `t5x` contains no code (but a checkpoint, for example), its spec has no
        # origin. The package airio has no origin, either.
        if spec is None or (spec.origin is None and name != "airio"):
            raise UserError(
                f"--engine t5x needs {name}, which is not installed. Install T5X and the packages "
                f"that it needs at the commits with which mtf is tested:{commands}"
            )
        found = _commit(name)
        if found not in (None, commit):
            raise UserError(
                f"{name} is installed at commit {found[:7]}, but mtf is tested with "
                f"{commit[:7]}. Install the tested commits:{commands}"
            )


def _commit(name: str) -> str | None:
    """Returns the commit from which pip installed a package, or None if it is unknown."""
    try:
        record = importlib.metadata.distribution(name).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    return json.loads(record or "{}").get("vcs_info", {}).get("commit_id")


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
