"""T5X's layouts and mtf's, as `mtf.convert` writes them."""

from __future__ import annotations

import errno
import json
import os
import re
import tracemalloc
from pathlib import Path

import ml_dtypes
import msgpack
import numpy as np
import pytest
import tensorstore as ts

from conversion import Checkpoint, Tensor, open_checkpoint
from conversion.training_state import state_tensors, write_state
from conversion.zarr_writer import chunk_shape
from mtf import convert
from mtf.base.writing import locked
from tests.conversion import writers
from tests.golden import recorded
from tests.small import contents

# Those of T5X; "mtf" is the same as "t5x_orbax".
FORMATS = ("t5x", "t5x_orbax")


def run(source: Path, out: Path, to: str, *arguments: str) -> int:
    return convert.main([str(source), str(out), "--to", to, *arguments])


def assert_same(found: Checkpoint, expected: Checkpoint) -> None:
    """Asserts that two checkpoints have the same tensors, bit by bit."""
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        array, other = found.tensors[name].read(), tensor.read()
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        assert array.tobytes() == other.tobytes(), name


def test_t5x_layout_is_what_t5x_writes(tmp_path: Path) -> None:
    source = recorded.unpack("rsqrt_zarr", tmp_path / "source")
    assert run(source, tmp_path / "out", "t5x") == 0
    found, expected = contents(tmp_path / "out" / "checkpoint_20"), contents(source)
    assert found.keys() == expected.keys() | {"checksums.json"}
    for name, content in expected.items():
        if name.endswith(".zarray"):
            assert json.loads(found[name]) == json.loads(content), name
    # The msgpack file: all fields, their order, and the arrays in it.
    assert found["checkpoint"] == expected["checkpoint"]
    assert_same(open_checkpoint(tmp_path / "out"), open_checkpoint(source))


def test_orbax_layout_is_what_t5x_writes(tmp_path: Path) -> None:
    source = recorded.unpack("rsqrt_orbax", tmp_path / "source")
    assert run(source, tmp_path / "checkpoint_20", "t5x_orbax") == 0
    found, expected = contents(tmp_path / "checkpoint_20"), contents(source)
    for name in ("state/_METADATA", "state/array_metadatas/process_0"):
        assert found[name] == expected[name], name
    # Orbax adds the path to which T5X wrote.
    assert expected["commit_success.txt"].startswith(found["commit_success.txt"].strip())
    for name in ("_CHECKPOINT_METADATA", "state/_sharding"):
        assert json.loads(found[name]).keys() == json.loads(expected[name]).keys(), name

    def database(folder: Path) -> dict[bytes, bytes]:
        spec = {"driver": "ocdbt", "base": f"file://{folder}/state/"}
        store = ts.KvStore.open(spec).result()
        return {key: store.read(key).result().value for key in store.list().result()}

    theirs = database(source)
    ours = database(tmp_path / "checkpoint_20")
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if key.endswith(b".zarray"):
            assert json.loads(ours[key]) == json.loads(value), key
    assert_same(open_checkpoint(tmp_path / "checkpoint_20"), open_checkpoint(source))


@pytest.mark.parametrize("to", FORMATS)
def test_optimizer_state(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters(), adafactor=True)
    assert run(source, tmp_path / "kept", to) == 0
    assert "Optimizer state: kept (208 tensors), step 7" in capsys.readouterr().out
    assert_same(open_checkpoint(tmp_path / "kept"), open_checkpoint(source))
    assert run(source, tmp_path / "dropped", to, "--optimizer", "drop") == 0
    assert "Optimizer state: dropped; step 7" in capsys.readouterr().out
    dropped = open_checkpoint(tmp_path / "dropped")
    assert {name for name in dropped.tensors if name.startswith("state/")} == {"state/step"}
    assert run(tmp_path / "dropped", tmp_path / "none", to) == 0
    assert "Optimizer state: none in the source; step 7" in capsys.readouterr().out
    assert run(tmp_path / "dropped", tmp_path / "refused", to, "--optimizer", "keep") == 2
    assert "has no optimizer state" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()


def test_dtype_is_that_of_the_parameters_only(tmp_path: Path) -> None:
    parameters = writers.random_parameters()
    source = writers.write_t5x(tmp_path, parameters, adafactor=True)
    assert run(source, tmp_path / "out", "t5x", "--dtype", "bfloat16") == 0
    written = open_checkpoint(tmp_path / "out")
    expected = {name: array.astype(ml_dtypes.bfloat16) for name, array in parameters.items()}
    writers.assert_holds(written, expected)
    slots = [x for name, x in written.tensors.items() if "param_states" in name]
    assert {x.dtype.name for x in slots} == {"float32"}
    content = (tmp_path / "out" / "checkpoint_7" / "checkpoint").read_bytes()
    leaf = msgpack.unpackb(content, ext_hook=msgpack.ExtType)["optimizer"]["target"]
    assert leaf["token_embedder"]["embedding"]["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vocabulary", "byt5", "--config", "x"], "--config cannot be used with --to t5x"),
        (["--dtype", "float16"], "dtype must be float32 or bfloat16, not float16"),
    ],
)
def test_refusals(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters())
    assert run(source, tmp_path / "out", "t5x", *arguments) == 2
    assert words in capsys.readouterr().err
    assert run(source, tmp_path / "checkpoint_8", "t5x") == 2
    assert re.search("step 8, but the step of .* is 7", capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_chunks_are_t5xs() -> None:
    # From `_choose_chunk_shape` of T5X, with 64 MiB.
    assert chunk_shape((384, 64), 4) == [384, 64]
    assert chunk_shape((250112, 4096), 4) == [3908, 4096]
    assert chunk_shape((4096, 10240), 4) == [4096, 2560]
    assert chunk_shape((), 4) == []


@pytest.mark.parametrize("to", ["t5x", "mtf"])
def test_memory_is_that_of_a_tensor(to: str, tmp_path: Path) -> None:
    parameters = writers.random_parameters(emb_dim=768, num_decoder_layers=1, tied=True)
    parameters["token_embedder/embedding"] = np.ones((45056, 768), np.float32)
    folder = writers.write_t5x(tmp_path, parameters)
    total = sum(array.nbytes for array in parameters.values())
    del parameters
    source = open_checkpoint(folder)
    largest_read = 0

    def watched(tensor: Tensor) -> Tensor:
        def read(index: object) -> np.ndarray:
            nonlocal largest_read
            array = tensor.read(index)
            largest_read = max(largest_read, array.nbytes)
            return array

        return Tensor(tensor.name, tensor.shape, tensor.dtype, read)

    source.tensors = {name: watched(x) for name, x in source.tensors.items()}
    (tmp_path / "out").mkdir()
    tracemalloc.start()
    write_state(state_tensors(source, to), to, folder, tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert largest_read <= 64 * 2**20  # a chunk
    assert peak < total * 2 / 3


def test_what_a_killed_conversion_left_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters())
    left = tmp_path / ".out.tmp"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    with locked(tmp_path, "OUT_DIR", name=".out.lock"):  # Another process is still writing.
        assert run(source, tmp_path / "out", "t5x") == 2
    assert "OUT_DIR: " in capsys.readouterr().err and left.exists()
    assert run(source, tmp_path / "out", "t5x") == 0
    assert {path.name for path in tmp_path.iterdir()} == {source.name, "out"}


@pytest.mark.parametrize("to", ["t5x", "hf"])
def test_full_disk(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters())
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fails(*_: object) -> None:
        raise full

    monkeypatch.setattr("conversion.safetensors_file.row_major", fails)
    for name in ("write_bytes", "write_text"):
        monkeypatch.setattr(Path, name, fails)
    assert run(source, tmp_path / "out", to) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"error: {tmp_path / 'out'} could not be written: No space left")
    assert message.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
