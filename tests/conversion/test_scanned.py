"""Checkpoints of T5X's scanned network have a tensor for each layer, as the unrolled one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from conversion import Checkpoint, ConversionError, infer_architecture, open_checkpoint
from conversion.scanned import unrolled
from conversion.tensor import array_tensor
from tests.conversion import writers


def test_every_parameter_and_parts_of_it(tmp_path: Path) -> None:
    parameters = writers.random_parameters(num_encoder_layers=3, bias_per_layer=True)
    checkpoint = open_checkpoint(writers.write_t5x(tmp_path, writers.stacked(parameters)))
    writers.assert_holds(checkpoint, parameters)
    found = checkpoint.parameters()
    for name, array in parameters.items():
        parts: list[Any] = [(slice(3, 13),), (slice(7, array.shape[0]),)]
        if array.ndim == 2:
            parts += [(slice(None), slice(5, 17)), (slice(2, 10), slice(8, 16))]
        for part in parts:
            np.testing.assert_array_equal(found[name].read(part), array[part], err_msg=name)
    sizes = infer_architecture(checkpoint)
    assert (sizes.num_encoder_layers, sizes.num_decoder_layers) == (3, 2)
    assert (sizes.num_heads, sizes.head_dim, sizes.relpos_bias_per_layer) == (3, 8, True)


def test_a_chunk_of_all_layers_is_decoded_once(tmp_path: Path) -> None:
    parameters = writers.random_parameters(num_encoder_layers=6, bias_per_layer=True)
    checkpoint = open_checkpoint(writers.write_t5x(tmp_path, writers.stacked(parameters)))
    names = [f"encoder/layers_{layer}/mlp/wo/kernel" for layer in range(6)]
    before = bytes_read()
    for name in names:
        np.testing.assert_array_equal(checkpoint.parameters()[name].read(), parameters[name])
    assert 0 < bytes_read() - before <= sum(parameters[name].nbytes for name in names)


def bytes_read() -> int:
    """Bytes of files that TensorStore has read."""
    metrics = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return int(sum(value["value"] for metric in metrics for value in metric["values"]))


@pytest.mark.parametrize(
    ("kernel", "axes", "shape"),
    [
        ("attention/query", "elhk", (24, 3, 8)),
        ("attention/query", "elhk", (20, 3, 8)),
        ("attention/query", "elhk", (40, 3, 8)),
        ("attention/out", "hlke", (3, 8, 24)),
        ("attention/out", "hlke", (3, 8, 20)),
        ("attention/out", "hlke", (3, 8, 40)),
        ("mlp/wi_0", "elm", (20, 40)),
        ("mlp/wo", "mle", (40, 20)),
        ("mlp/wo", "mle", (20, 20)),
    ],
)
def test_slots_are_those_of_the_unrolled_network(
    kernel: str, axes: str, shape: tuple[int, ...]
) -> None:
    """Each moment is the mean of a square that T5X computes for the unrolled kernel."""
    squares = np.random.default_rng(0).random((2, *shape))
    whole = np.stack(list(squares), axis=1)
    others = tuple(i for i, axis in enumerate(axes) if axis in "hkm")
    leaves = {
        f"target/encoder/encoder/{kernel}/kernel": whole,
        "state/slots/v_row": whole.mean(others),
        "state/slots/v_col": whole.mean(axes.index("e")),
        "state/slots/v": np.zeros(1),
        "state/slots/m": whole,
    }
    slots = f"state/param_states/encoder/encoder/{kernel}/kernel"
    tensors = {
        (name := key.replace("state/slots", slots)): array_tensor(name, array)
        for key, array in leaves.items()
    }
    found = unrolled(Checkpoint(Path("c"), "t5x-zarr", 1, tensors)).tensors
    rows = np.prod(shape[: 2 if axes == "hlke" else 1])
    for layer in range(2):
        flat = squares[layer].reshape(int(rows), -1)
        other, largest = np.argsort(flat.shape, kind="stable")  # T5X's rule
        own = f"state/param_states/encoder/layers_{layer}/{kernel}/kernel"
        np.testing.assert_allclose(found[f"{own}/v_row"].read(), flat.mean(largest))
        np.testing.assert_allclose(found[f"{own}/v_col"].read(), flat.mean(other))
        np.testing.assert_array_equal(found[f"{own}/v"].read(), [0])
        np.testing.assert_array_equal(found[f"{own}/m"].read(), flat)


def test_other_arrays_are_refused_by_name(tmp_path: Path) -> None:
    parameters = writers.stacked(writers.random_parameters(bias_per_layer=True))
    for number, (name, array, expected) in enumerate(
        [
            ("encoder/encoder/lora/a", np.ones((3, 2)), "no parameter of this name"),
            ("encoder/encoder/mlp/wo/kernel", np.ones((48, 5, 32)), "the number of layers (2)"),
            ("encoder/encoder/mlp/wo/kernel", np.ones((48, 2, 1, 32)), "expected 3 dimensions"),
        ]
    ):
        path = writers.write_t5x(tmp_path / str(number), parameters | {name: array})
        with pytest.raises(ConversionError) as caught:
            open_checkpoint(path)
        assert f"{path}: " in str(caught.value)
        assert f"target/{name}" in str(caught.value) and expected in str(caught.value)
