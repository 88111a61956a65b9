"""Exports are read back, without PyTorch: values that changed on their way are noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conversion import huggingface, open_checkpoint, peft_writer, safetensors_file
from mtf import convert
from mtf.jobs.convert import export as exports
from tests.conversion import writers

FORMATS = ("hf", "t5x", "t5x_orbax", "mtf", "peft")
EMBEDDING = "token_embedder/embedding"


def source(folder: Path) -> Path:
    """A checkpoint of T5X's layout in which one kernel has an adapter."""
    rng = np.random.default_rng(1)
    root = "encoder/layers_0/attention/query"
    adapter = {"lora_a": (32, 4), "lora_b": (4, 24), "lora_scale": ()}
    arrays = {f"{root}/{x}": rng.normal(size=s).astype(np.float32) for x, s in adapter.items()}
    parameters = {**writers.random_parameters(), **arrays}
    return writers.write_t5x(folder, parameters, inline=[f"{root}/lora_scale"])


def change_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes the last value of the last row of one tensor on its way to the disk."""

    def changed(array: np.ndarray) -> np.ndarray:
        array = np.array(array)
        array.reshape(-1)[-1:].view(np.uint8)[0] ^= 1  # one bit
        return array

    write_sharded, write_state = safetensors_file.write_sharded, exports.write_state
    save_file = peft_writer.save_file

    def sharded(directory: Path, tensors: list[Any], *rest: Any) -> None:
        found = [x.mapped(changed) if x.name == "shared.weight" else x for x in tensors]
        write_sharded(directory, found, *rest)

    def state(tensors: dict[str, Any], *rest: Any) -> None:
        name = f"target/{EMBEDDING}"
        write_state({**tensors, name: tensors[name].mapped(changed)}, *rest)

    def save(weights: dict[str, np.ndarray], *rest: Any, **options: Any) -> None:
        first, *_ = weights
        save_file({**weights, first: changed(weights[first])}, *rest, **options)

    monkeypatch.setattr(huggingface, "write_sharded", sharded)
    monkeypatch.setattr(exports, "write_state", state)
    monkeypatch.setattr(peft_writer, "save_file", save)


@pytest.mark.parametrize("to", FORMATS)
def test_one_bit_is_noticed(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, arguments = source(tmp_path / "source"), ["--to", to]
    assert convert.main([str(path), str(tmp_path / "good"), *arguments]) == 0
    count = {"hf": 52, "peft": 2}.get(to, 53)
    expected = f"Verified: the {count} tensors in the files equal those that were written"
    assert expected in capsys.readouterr().out
    change_what_is_written(monkeypatch)
    out = tmp_path / "exported" / "bad"
    assert convert.main([str(path), str(out), *arguments]) == 1
    printed = capsys.readouterr()
    assert "The files do not contain what was written, so they were deleted. " in printed.err
    name = "SelfAttention.q.lora_" if to == "peft" else EMBEDDING
    assert name in printed.err and f"1 of {count} tensors differ" in printed.err
    assert "Wrote" not in printed.out and not out.parent.exists()
    assert convert.main([str(path), str(out), *arguments, "--no-verify"]) == 0


def test_tensors_that_the_config_changes_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = huggingface.config
    wrong = {"scale_decoder_outputs": True}
    monkeypatch.setattr(huggingface, "config", lambda export: right(export) | wrong)
    path = source(tmp_path / "source")
    assert convert.main([str(path), str(tmp_path / "out"), "--to", "hf"]) == 1
    assert "target/decoder/logits_dense/kernel: 1 of 52" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = exports.write_state

    def cut(tensors: Any, to: str, source: Path, directory: Path) -> None:
        write(tensors, to, source, directory)
        chunk = directory / f"target.{EMBEDDING.replace('/', '.')}" / "0.0"
        chunk.write_bytes(chunk.read_bytes()[:-100])

    monkeypatch.setattr(exports, "write_state", cut)
    path = source(tmp_path / "source")
    assert convert.main([str(path), str(tmp_path / "out"), "--to", "t5x"]) == 1
    assert f"The tensor target/{EMBEDDING} of " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rounding_and_not_a_number_are_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = writers.random_parameters()
    parameters[EMBEDDING][3, :2] = np.nan, -np.inf
    path = writers.write_t5x(tmp_path / "source", parameters)
    for to in ("hf", "mtf"):
        arguments = ["--to", to, "--dtype", "bfloat16", "--allow-non-finite"]
        assert convert.main([str(path), str(tmp_path / to), *arguments]) == 0
        assert "Verified: the 5" in capsys.readouterr().out
    found = open_checkpoint(tmp_path / "hf").parameters()[EMBEDDING].read()
    expected = parameters[EMBEDDING].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found.astype(np.float32), expected)


def test_flax_is_converted_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = writers.random_parameters(seed=2)
    path = writers.write_t5x(tmp_path / "source", parameters)
    directory = tmp_path / "hf"
    assert convert.main([str(path), str(directory), "--to", "hf", "--no-verify"]) == 0
    writers.write_flax(directory)
    pytest.importorskip("transformers", reason="transformers is not installed (extra: torch)")
    capsys.readouterr()
    assert convert.main([str(directory), str(tmp_path / "out"), "--to", "t5x", "--verify"]) == 0
    printed = capsys.readouterr().out
    assert "Verified: the 53 tensors" in printed and "Verified: float32 logits" in printed
    writers.assert_holds(tmp_path / "out", parameters)
