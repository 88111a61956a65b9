"""Prepares Orbax to write checkpoints to `gs://` and `s3://` paths."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import orbax.checkpoint as ocp

from conversion.orbax import COMMITTED
from mtf import storage
from mtf.checkpoints import steps
from mtf.storage.remote import RemotePath, filesystem

# Object stores cannot rename directories, so Orbax marks complete checkpoints with a file.
ATOMICITY = ocp.options.AtomicityOptions(mode=ocp.options.AtomicityMode.COMMIT_FILE)


def prepare(folder: RemotePath) -> set[int]:
    """Makes Orbax use mtf's storage libraries and endpoints for a checkpoint directory.

    Also adds Orbax's mark of completeness to checkpoints that were copied from a file system,
    because Orbax deletes unmarked checkpoints. Returns the steps of all complete checkpoints.
    """
    os.environ.setdefault("EPATH_USE_TF", "false")  # Otherwise Orbax may import TensorFlow.
    filesystem(folder.protocol)
    storage.use_emulator()
    _adapt_orbax()
    saved = steps.saved_steps(folder.parent)
    for step in saved:
        marker = folder / f"checkpoint_{step}" / COMMITTED
        if not marker.exists():
            marker.write_text("This checkpoint was copied.\n")
    return set(saved)


@functools.cache
def _adapt_orbax() -> None:
    """Makes Orbax open stores as mtf does: it has no `s3://`, and retries for a quarter of an hour.

    Orbax has no setting for this. Therefore, this function wraps `build_kvstore_tspec`, a private
    function in the module that defines the public `get_ts_context`.
    """
    module = sys.modules[ocp.serialization.get_ts_context.__module__]
    build: Callable[..., dict[str, Any]] = vars(module)["build_kvstore_tspec"]

    def build_spec(directory: str, *args: Any, **options: Any) -> dict[str, Any]:
        scheme, separator, rest = directory.partition("://")
        if scheme not in ("gs", "s3"):
            return build(directory, *args, **options)
        spec = build(f"gs{separator}{rest}", *args, **options)
        found = spec.get("base", spec)  # The spec of a database contains "base".
        found |= storage.kvstore(storage.as_path(directory)) | {"path": found["path"]}
        return spec

    vars(module)["build_kvstore_tspec"] = build_spec
