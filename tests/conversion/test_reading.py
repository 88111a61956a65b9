"""Checkpoints of all layouts are read, and incomplete ones are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import msgpack
import numpy as np
import pytest

from conversion import ConversionError, IncompleteCheckpoint, open_checkpoint
from tests.conversion import writers
from tests.conversion.writers import assert_holds

PARAMETERS = writers.random_parameters(num_encoder_layers=3, num_decoder_layers=1, tied=True)


@pytest.mark.parametrize("kvstore", ["file", "gfile", "gcs", "older"])
def test_t5x_arrays_lie_beside_the_msgpack_file(tmp_path: Path, kvstore: str) -> None:
    path = writers.write_t5x(tmp_path, PARAMETERS, kvstore=kvstore)
    checkpoint = open_checkpoint(path)
    assert (checkpoint.layout, checkpoint.step) == ("t5x-zarr", 7)
    assert checkpoint.tensors["state/step"].read() == 7
    assert_holds(checkpoint, PARAMETERS)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_t5x_inline_leaves(tmp_path: Path, dtype: type) -> None:
    inline = ["encoder/encoder_norm/scale", "token_embedder/embedding"]
    path = writers.write_t5x(tmp_path, PARAMETERS, dtype=dtype.__name__, inline=inline)
    assert_holds(path, {name: array.astype(dtype) for name, array in PARAMETERS.items()})


def test_flax_itself_is_understood(tmp_path: Path) -> None:
    serialization = pytest.importorskip("flax.serialization")
    tree = {"target": {"a": np.arange(6.0).reshape(2, 3), "b": {"c": np.float32(2.5)}}}
    content = serialization.to_bytes({"version": 3, "optimizer": tree})
    (tmp_path / "checkpoint").write_bytes(content)
    tensors = open_checkpoint(tmp_path).tensors
    np.testing.assert_array_equal(tensors["target/a"].read(), tree["target"]["a"])
    assert tensors["target/b/c"].read() == np.float32(2.5)


def test_orbax(tmp_path: Path) -> None:
    path = writers.write_orbax(tmp_path, PARAMETERS)
    for place in (path, path / "state"):
        checkpoint = open_checkpoint(place)
        assert (checkpoint.layout, checkpoint.step) == ("orbax", 7)
        assert checkpoint.tensors["state/step"].read() == 7
        assert_holds(checkpoint, PARAMETERS)


def test_a_slice_reads_only_its_chunks(tmp_path: Path) -> None:
    path = writers.write_t5x(tmp_path, PARAMETERS)
    tensor = open_checkpoint(path).parameters()["token_embedder/embedding"]
    second_chunk = path / "target.token_embedder.embedding" / "1.0"
    second_chunk.write_bytes(b"not gzip")
    rows = PARAMETERS["token_embedder/embedding"][10:20, 3:5]
    np.testing.assert_array_equal(tensor.read((slice(10, 20), slice(3, 5))), rows)
    with pytest.raises(ConversionError, match=r"embedding of .* cannot be read"):
        tensor.read()


@pytest.mark.parametrize("inside", [".", "checkpoints"])
def test_the_latest_of_several(tmp_path: Path, inside: str) -> None:
    for step in (9, 10, 100):
        writers.write_orbax(tmp_path / inside, {"a": np.full(2, step)}, step)
    assert open_checkpoint(tmp_path).step == 100
    assert open_checkpoint(tmp_path, step=9).parameters()["a"].read().tolist() == [9, 9]
    with pytest.raises(ConversionError, match="no checkpoint of step 11; it has 9, 10"):
        open_checkpoint(tmp_path, step=11)


def test_incomplete_ones_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writers.write_t5x(tmp_path, PARAMETERS, 1)
    shutil.rmtree(writers.write_t5x(tmp_path, PARAMETERS, 2) / "target.encoder.encoder_norm.scale")
    (writers.write_t5x(tmp_path, PARAMETERS, 3) / "checkpoint").unlink()
    (tmp_path / "checkpoint_4.orbax-checkpoint-tmp").mkdir()
    assert open_checkpoint(tmp_path).step == 1
    assert "checkpoint_2 is incomplete" in caplog.text
    assert "checkpoint_3 is not a complete checkpoint" in caplog.text


def test_a_truncated_msgpack_file(tmp_path: Path) -> None:
    path = writers.write_t5x(tmp_path, PARAMETERS)
    content = (path / "checkpoint").read_bytes()
    for length in (0, 1, 100, len(content) - 1):
        (path / "checkpoint").write_bytes(content[:length])
        with pytest.raises(IncompleteCheckpoint, match="truncated or damaged"):
            open_checkpoint(path)


@pytest.mark.parametrize("lost", ["manifest.ocdbt", "_METADATA", "d"])
def test_orbax_without_some_of_its_files(tmp_path: Path, lost: str) -> None:
    path = writers.write_orbax(tmp_path, PARAMETERS)
    victim = path / "state" / lost
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
    with pytest.raises(IncompleteCheckpoint, match=str(path)):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "name", ["checkpoint_5.orbax-checkpoint-tmp-0", "checkpoint_5.orbax-checkpoint-tmp"]
)
def test_an_unfinished_directory(tmp_path: Path, name: str) -> None:
    writers.write_t5x(tmp_path, PARAMETERS, 5).rename(tmp_path / name)
    with pytest.raises(IncompleteCheckpoint, match="unfinished checkpoint"):
        open_checkpoint(tmp_path / name)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="nowhere does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ConversionError, match="There is no checkpoint in"):
        open_checkpoint(tmp_path)
    (tmp_path / "checkpoint").write_bytes(msgpack.packb({"params": 1}))
    with pytest.raises(ConversionError, match="it has no optimizer/target"):
        open_checkpoint(tmp_path)
    with pytest.raises(ConversionError, match="is a file"):
        open_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize("write", [writers.write_t5x, writers.write_orbax])
def test_a_path_may_go_through_a_parent_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., Path]
) -> None:
    """`../run`, as a run is named from another working directory; TensorStore takes no `..`."""
    path = write(tmp_path / "run", writers.random_parameters(seed=1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    tensors = open_checkpoint(Path("..") / path.relative_to(tmp_path)).tensors
    assert tensors["target/token_embedder/embedding"].read().size
