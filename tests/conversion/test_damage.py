"""Damaged checkpoints are refused by one message that names the tensor and the file."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mtf import convert
from mtf.base.errors import UserError
from mtf.checkpoints.restore import restore_tree
from tests import small
from tests.conversion import writers
from tests.stress import fuzz_readers

KERNEL = "decoder/layers_1/mlp/wo/kernel"
DOTTED = f"target.{KERNEL.replace('/', '.')}"
NO_VOCABULARY = ["--vocabulary", "none"]
TORCH_KERNEL = "decoder.block.1.layer.2.DenseReluDense.wo.weight"


class RunsCode:
    """Its pickle creates a file when it is loaded."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


def t5x(folder: Path, **others: np.ndarray) -> Path:
    return writers.write_t5x(folder, writers.random_parameters() | others)


def huggingface(folder: Path) -> Path:
    assert convert.main([str(t5x(folder)), str(folder / "hf"), "--to", "hf"]) == 0
    (folder / "hf" / "checksums.json").unlink()  # as in a directory that transformers wrote
    return folder / "hf"


def cut(file: Path) -> Path:
    file.write_bytes(file.read_bytes()[:-100])
    return file


def without_a_chunk(folder: Path) -> tuple[Path, list[object]]:
    source = t5x(folder)
    (source / DOTTED / "1.0").unlink()
    return source, [source, KERNEL, "lacks 1 of its 2 chunks (1.0)"]


def with_a_damaged_chunk(folder: Path) -> tuple[Path, list[object]]:
    source = t5x(folder)
    cut(source / DOTTED / "0.0")
    return source, [f"The tensor target/{KERNEL} of {source} cannot be read: "]


def with_another_shape_in_the_array(folder: Path) -> tuple[Path, list[object]]:
    source = t5x(folder)
    file = source / DOTTED / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"shape": [47, 32]}))
    return source, [source, KERNEL, "(47, 32)", "(48, 32) in the file 'checkpoint'"]


def with_other_safetensors(folder: Path) -> tuple[Path, list[object]]:
    source = huggingface(folder)
    tensors = load_file(source / "model.safetensors")
    tensors["extra.weight"] = tensors.pop(TORCH_KERNEL)
    save_file(tensors, source / "model.safetensors")
    return source, [source, "extra.weight", TORCH_KERNEL, "missing", "unexpected"]


def with_nan_in_safetensors(folder: Path) -> tuple[Path, list[object]]:
    source = huggingface(folder)
    tensors = load_file(source / "model.safetensors")
    tensors[TORCH_KERNEL][3, 4] = np.nan
    save_file(tensors, source / "model.safetensors")
    file = source / "model.safetensors"
    tensor = f"The tensor target/{KERNEL} ({TORCH_KERNEL})"
    return source, [f"{tensor} of {file} contains NaN or infinity (1 of 1,536 values)"]


def with_a_pickle_as_safetensors(folder: Path) -> tuple[Path, list[object]]:
    source = huggingface(folder)
    (source / "model.safetensors").write_bytes(pickle.dumps(RunsCode(folder / "proof"), 2))
    return source, [source / "model.safetensors", "is truncated or not a safetensors file"]


@pytest.mark.parametrize(
    "damage",
    [
        without_a_chunk,
        with_a_damaged_chunk,
        with_another_shape_in_the_array,
        with_other_safetensors,
        with_nan_in_safetensors,
        with_a_pickle_as_safetensors,
    ],
)
def test_one_message_and_no_output(
    damage: Callable[[Path], tuple[Path, list[object]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, expected = damage(tmp_path)
    capsys.readouterr()
    assert convert.main([str(source), str(tmp_path / "out"), "--to", "hf", *NO_VOCABULARY]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("error: ") == 1
    for text in expected:
        assert str(text) in message
    assert not (tmp_path / "proof").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"checkpoint_7", "hf"} | {
        file.name for file in source.iterdir()
    }


def test_a_layer_of_an_absurd_number_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = t5x(tmp_path, **{"decoder/layers_99999999/x": np.ones(1, np.float32)})
    assert convert.main([str(source), str(tmp_path / "out"), "--to", "hf"]) == 2
    assert (
        "target/decoder/layers_99999999; expected at most 1,000 layers" in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", [name for name in fuzz_readers.WRITTEN if name != "to_peft"])
def test_a_flipped_bit_is_refused_by_the_name_of_the_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = fuzz_readers.WRITERS[name](tmp_path / "source")
    assert convert.main(["--inspect", str(source)]) == 0
    file = small.flip_a_bit(source)
    out = tmp_path / "out"
    to = "mtf" if name == "run" else "hf"  # Only the run's config has what `hf` needs.
    for arguments in (
        ["--inspect", str(source)],
        ["--compare", str(source), str(source)],
        [str(source), str(out), "--to", to],
    ):
        assert convert.main(arguments) == 2
        assert f"{file} is damaged: its crc32c is " in capsys.readouterr().err
    assert not out.exists()
    embedding = jax.ShapeDtypeStruct((20_480, 16), "float32")
    shapes = {"target": {"token_embedder": {"embedding": embedding}}}
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(UserError, match=f"{file} is damaged"):
        restore_tree(source, shapes, jax.tree.map(lambda _: device, shapes))


@pytest.mark.parametrize("reader", fuzz_readers.WRITERS)
def test_damaged_files_are_read_or_refused(reader: str, tmp_path: Path) -> None:
    if "pytorch" in reader:
        pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
    outcomes, problems = fuzz_readers.fuzz(reader, 30, 0, tmp_path)
    assert not problems
    assert outcomes["refused"] > 5
