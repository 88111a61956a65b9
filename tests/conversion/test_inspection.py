"""`mtf.convert --inspect` and `--compare` show tensors and differences, across formats."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from conversion import blocks
from conversion.tensor import array_tensor
from mtf import convert
from mtf.cli.convert import inspection
from tests.conversion import writers

NAME = "decoder/layers_0/mlp/wo/kernel"
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1}


def parameters() -> dict[str, writers.Array]:
    return writers.random_parameters(**SIZES)


def write_mesh(folder: Path, arrays: dict[str, writers.Array]) -> Path:
    return writers.write_bundle(folder, writers.mesh(arrays))


def shown(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    capsys.readouterr()
    assert convert.main([str(argument) for argument in arguments]) == status
    return capsys.readouterr().out


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_statistics_are_those_of_numpy(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 1000)  # several blocks
    monkeypatch.setattr(inspection, "_VALUES_AT_ONCE", 50)
    rng = np.random.default_rng(0)
    array = (rng.standard_normal((300, 7)) * 3 + 100).astype(dtype)
    found = inspection.statistics(array_tensor("x", array))
    values = array.astype(np.float64)
    expected = values.min(), values.max(), values.mean(), values.std(), 0
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_statistics_leave_out_values_that_are_not_finite() -> None:
    array = np.array([1, np.nan, 3, np.inf, -np.inf, np.nan, np.nan], np.float32)
    assert inspection.statistics(array_tensor("x", array)) == (1, 3, 2, 1, 5)
    *numbers, num_others = inspection.statistics(array_tensor("x", array[1:2]))
    assert all(map(math.isnan, numbers)) and num_others == 1
    assert inspection.statistics(array_tensor("x", np.array(5))) == (5, 5, 5, 0, 0)


def test_inspect_shows_names_and_statistics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = parameters()
    arrays[NAME][:] = 0.25
    arrays[NAME][0, :2] = -1.5, np.nan
    text = shown(capsys, "--inspect", write_mesh(tmp_path, arrays))
    rows = text.splitlines()
    row = rows.index(f"target/{NAME}")
    assert rows[row + 1 : row + 3] == [
        "  file: decoder/block_000/layer_002/DenseReluDense/wo/kernel",
        "  Hugging Face: decoder.block.0.layer.2.DenseReluDense.wo.weight",
    ]
    assert rows[row + 3].split()[:6] == ["48", "×", "32", "float32", "-1.5", "0.25"]
    assert rows[row + 3].split()[-1] == "1"
    assert f"NaN or infinity in 1 tensors: target/{NAME}" in text
    assert "mesh-tensorflow, step 7" in rows[0]
    assert "1 + 1 layers, d_model 32, 3 heads of 8" in rows[1]


def test_inspect_of_a_directory_of_hugging_face_and_of_stacked_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = writers.write_t5x(tmp_path, parameters())
    shown(capsys, source, tmp_path / "hf", "--to", "hf")
    shown(capsys, "--inspect", tmp_path / "hf", "--step", 0, status=2)
    text = shown(capsys, "--inspect", tmp_path / "hf")
    assert "target/token_embedder/embedding\n  file: shared.weight\n384 × 32" in text
    stacked = writers.stacked(writers.random_parameters(bias_per_layer=True))
    text = shown(capsys, "--inspect", writers.write_t5x(tmp_path / "scanned", stacked))
    layer = "target/decoder/layers_1/mlp/wo/kernel\n  file: target{0}decoder{0}decoder{0}mlp{0}wo"
    assert layer.format(".") in text or layer.format("/") in text
    assert "kernel[:, 1]\n" in text


def test_equal_checkpoints_of_other_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = writers.write_t5x(tmp_path, parameters(), adafactor=True)
    number = 5 * len(parameters()) + 1  # with four slots each, and the step
    assert f"All {number} tensors are equal.\n" in shown(capsys, "--compare", source, source)
    text = shown(capsys, "--compare", source, write_mesh(tmp_path / "mesh", parameters()))
    assert "B has no optimizer state, so only the parameters are compared." in text
    assert text.endswith(f"All {len(parameters())} tensors are equal.\n")
    shown(capsys, source, tmp_path / "hf", "--to", "hf")
    assert "tensors are equal." in shown(capsys, "--compare", tmp_path / "hf", source)


def test_differences_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = parameters()
    arrays[NAME][0, 0] = np.nan  # in both
    source = writers.write_t5x(tmp_path, arrays)
    other = {name: array.copy() for name, array in arrays.items()}
    largest = np.nanmax(np.abs(arrays[NAME]))
    other[NAME][2, 3] += 0.5
    other[NAME][2, 4] -= 0.25
    other["encoder/encoder_norm/scale"] = np.ones(31, np.float32)
    other["decoder/decoder_norm/scale"][0] = np.nan
    del other["decoder/relpos_bias/rel_embedding"]
    text = shown(
        capsys, "--compare", source, writers.write_t5x(tmp_path / "other", other), status=1
    )
    rows = {line.split()[-1]: line for line in text.splitlines() if "  target/" in line}
    assert rows.keys() == {
        f"target/{name}"
        for name in (
            NAME,
            "encoder/encoder_norm/scale",
            "decoder/decoder_norm/scale",
            "decoder/relpos_bias/rel_embedding",
        )
    }
    absolute, relative, number, _ = rows[f"target/{NAME}"].split()
    assert (absolute, relative, number) == ("0.5", f"{0.5 / largest:.2e}", "2")
    assert rows["target/decoder/decoder_norm/scale"].split()[0] == "inf"
    assert "shape (32,) in A, (31,) in B" in rows["target/encoder/encoder_norm/scale"]
    assert "missing in B" in rows["target/decoder/relpos_bias/rel_embedding"]
    assert f"{len(arrays) + 1 - 5} tensors are equal, 4 differ or are missing." in text


def test_slots_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = writers.write_t5x(tmp_path / "a", parameters(), adafactor=True)
    other = writers.write_t5x(tmp_path / "b", parameters(), step=8, adafactor=True)
    text = shown(capsys, "--compare", source, other, status=1)
    row = next(line for line in text.splitlines() if line.endswith("  state/step"))
    assert row.split() == ["1", "1.43e-01", "1", "state/step"]
    assert f"{5 * len(parameters())} tensors are equal, 1 differ or are missing." in text


def test_options_that_do_not_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, expected in (
        (["--inspect", "a", "b"], "--inspect takes one checkpoint; b is a second one"),
        (["--compare", "a"], "--compare takes two checkpoints"),
        (["--inspect", "a", "--to", "hf", "--verify"], "--verify cannot be used with --inspect"),
        (["a", "b"], "missing: --to"),
        (["a"], "missing: OUT_DIR, --to"),
    ):
        with pytest.raises(SystemExit) as caught:
            convert.main(arguments)
        assert caught.value.code == 2
        assert expected in capsys.readouterr().err
    assert convert.main(["--inspect", str(tmp_path / "none")]) == 2
    assert "none does not exist" in capsys.readouterr().err
