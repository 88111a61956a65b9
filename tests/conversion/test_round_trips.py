"""Every source and every target: all values survive, bit by bit."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from conversion import open_checkpoint
from mtf import convert
from mtf.base.writing import JOB_FILE
from tests import small
from tests.conversion import writers
from tests.conversion.writers import assert_holds
from tests.golden import recorded

STATE_FORMATS = ("t5x", "t5x_orbax", "mtf")
TARGETS = (*STATE_FORMATS, "hf")
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
Arrays = dict[str, writers.Array]


def run(source: Path, out: Path, to: str, dtype: str | None = None) -> Path:
    arguments = [str(source), str(out), "--to", to]
    arguments += ["--dtype", dtype] if dtype else []
    assert convert.main(arguments) == 0
    return out


def read(path: Path) -> Arrays:
    return {name: x.read() for name, x in open_checkpoint(path).tensors.items()}


# How the sources are written, without the code under test where that is possible.


def orbax(folder: Path, parameters: Arrays) -> Path:
    return writers.write_orbax(folder, parameters)


def orbax_without_state(folder: Path, parameters: Arrays) -> Path:
    path = writers.write_orbax(folder / "with", parameters)
    return shutil.copytree(path / "state", folder / path.name)


def mesh(folder: Path, parameters: Arrays) -> Path:
    return writers.write_bundle(folder, writers.mesh(parameters))


def t5x(folder: Path, parameters: Arrays) -> Path:
    dtype = parameters["token_embedder/embedding"].dtype.name
    return writers.write_t5x(folder, parameters, dtype=dtype)


def scanned(folder: Path, parameters: Arrays) -> Path:
    return t5x(folder, writers.stacked(parameters))


def written(to: str) -> Callable[[Path, Arrays], Path]:
    def write(folder: Path, parameters: Arrays) -> Path:
        dtype = parameters["token_embedder/embedding"].dtype.name
        return run(t5x(folder / "t5x", parameters), folder / to, to, dtype)

    return write


SOURCES = {
    "t5x": t5x,
    "orbax": orbax,
    "orbax_without_state": orbax_without_state,
    "scanned": scanned,
    "mesh": mesh,
    "mtf": written("mtf"),
    "hf": written("hf"),
}


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize("source", SOURCES)
def test_parameters_survive_every_target(source: str, dtype: str, tmp_path: Path) -> None:
    parameters = writers.random_parameters(num_encoder_layers=1, bias_per_layer=source == "scanned")
    parameters = {name: array.astype(DTYPES[dtype]) for name, array in parameters.items()}
    path = SOURCES[source](tmp_path / "source", parameters)
    assert_holds(path, parameters)
    for to in TARGETS:
        there = run(path, tmp_path / to, to, dtype)
        assert_holds(there, parameters)
        # Sources that cannot be written have the values under the unrolled network's names.
        back = {"hf": "hf", "mtf": "mtf", "orbax": "t5x_orbax"}
        assert_holds(
            run(there, tmp_path / f"{to}_back", back.get(source, "t5x"), dtype), parameters
        )


def test_files_are_the_same_after_a_round_trip(tmp_path: Path) -> None:
    parameters = writers.random_parameters()
    first = run(writers.write_t5x(tmp_path, parameters, adafactor=True), tmp_path / "t5x", "t5x")
    for to in STATE_FORMATS:
        there = run(first, tmp_path / f"to_{to}", to)
        back = run(there, tmp_path / f"from_{to}", "t5x")
        assert small.contents(back, JOB_FILE) == small.contents(first, JOB_FILE)
    model = run(first, tmp_path / "hf", "hf")
    for to in TARGETS:
        there = run(model, tmp_path / f"model_to_{to}", to)
        back = run(there, tmp_path / f"model_from_{to}", "hf")
        name = "model.safetensors"
        assert (back / name).read_bytes() == (model / name).read_bytes()


def slots(kind: str, parameters: Arrays) -> Arrays:
    """Random optimizer state under T5X's names."""
    rng = np.random.default_rng(3)
    found: Arrays = {}
    if kind == "optax":
        found["0/count"] = np.asarray(7, np.int32)
    for name, array in parameters.items():
        shapes = {
            "factored": {"m": (1,), "v": (1,), "v_row": array.shape[:1], "v_col": array.shape[1:]},
            "unfactored": {"m": (1,), "v": array.shape, "v_row": (1,), "v_col": (1,)},
            "adamw": {"mu": array.shape, "nu": array.shape},
            "optax": {"mu": array.shape, "nu": array.shape},
        }
        is_vector = kind == "factored" and array.ndim == 1
        for slot, shape in shapes["unfactored" if is_vector else kind].items():
            own = f"0/{slot}/{name}" if kind == "optax" else f"{name}/{slot}"
            is_unused = kind.endswith("factored") and shape == (1,)
            found[own] = np.zeros(1, np.float32) if is_unused else rng.random(shape, np.float32)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["factored", "unfactored", "adamw", "optax"])
def test_optimizer_state_survives(kind: str, dtype: str, tmp_path: Path) -> None:
    parameters = writers.random_parameters(num_encoder_layers=1, num_decoder_layers=1)
    state = slots(kind, parameters)
    source = writers.write_t5x(tmp_path / "source", parameters, dtype=dtype, slots=state)
    parameters = {name: array.astype(DTYPES[dtype]) for name, array in parameters.items()}
    for first, second in itertools.product(STATE_FORMATS, STATE_FORMATS):
        there = tmp_path / first
        if not there.exists():
            run(source, there, first)
        back = run(there, tmp_path / f"{first}_{second}", second)
        for path in (there, back):
            assert_holds(path, parameters)
            assert_holds(path, state, root="state/param_states/")
            assert open_checkpoint(path).tensors["state/step"].read() == 7


@pytest.mark.parametrize("name", ["rsqrt_zarr", "rsqrt_orbax", "scanned_zarr"])
def test_recorded_checkpoints(name: str, tmp_path: Path) -> None:
    source = recorded.unpack(name, tmp_path / "source")
    expected = read(source)
    for to in STATE_FORMATS:
        found = read(run(source, tmp_path / to, to))
        assert found.keys() == expected.keys()
        for key, array in expected.items():
            assert found[key].tobytes() == array.tobytes(), key
