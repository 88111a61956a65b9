"""A dry run reads checkpoints and vocabularies in stores, but not their arrays."""

from __future__ import annotations

from pathlib import Path

from mtf.storage.remote import RemotePath
from tests import stores
from tests.conversion import writers
from tests.jobs.test_dry_run import NETWORK, tiny
from tests.storage.conftest import BUCKET, put


def start(path: object) -> str:
    """The text of the start, or the problem, of a run from a checkpoint."""
    restore = "@mtf.checkpoints.RestoreCheckpointConfig"
    found = tiny(
        checkpoint__restore=f"{restore}(path={str(path)!r}, mode='specific', "
        "fallback_to_scratch=True)"
    )
    return "\n".join(found.problems) or found.rows["start"]


def test_a_start_checkpoint_in_a_store_is_checked(store: RemotePath, tmp_path: Path) -> None:
    local = writers.write_t5x(tmp_path / "model", writers.random_parameters(), step=7)
    put(local, store / "checkpoint_7")
    stores.SERVED.clear()
    number = len(writers.random_parameters()) + 1
    expected = f"{store / 'checkpoint_7'} (t5x-zarr, step 7): {number} tensors fit"
    assert start(store / "checkpoint_7").startswith(expected)
    size = 4 * NETWORK["vocab_size"] * NETWORK["emb_dim"]
    assert all(end - begin < size for _, begin, end in stores.SERVED), "no embedding is read"
    assert "checkpoint_8 does not exist" in start(store / "checkpoint_8")
    gone = str(store).replace(BUCKET, "no-such-bucket", 1)
    assert "no-such-bucket" in start(f"{gone}/checkpoint_7")
