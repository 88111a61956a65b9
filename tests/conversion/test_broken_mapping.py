"""No row of the table of names can be wrong unnoticed: verification fails for each mistake.

All matrices of the networks here are square and of one size, so no mistake changes a shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed (extra: torch)"
)

from flax.traverse_util import unflatten_dict  # noqa: E402

from conversion import huggingface, open_checkpoint  # noqa: E402
from conversion.tensor import Tensor, array_tensor  # noqa: E402
from mtf.jobs.convert import verification  # noqa: E402
from mtf.models import t5  # noqa: E402
from tests.conversion import writers  # noqa: E402

SIZE = 32
SQUARE = {
    "vocab_size": SIZE,
    "emb_dim": SIZE,
    "num_heads": SIZE,  # as many as buckets
    "head_dim": 1,
    "mlp_dim": SIZE,
}
MODELS: dict[str, dict[str, Any]] = {
    "t5_1_1": {"num_decoder_layers": 1},
    "umt5_tied_ungated": {
        "bias_per_layer": True,
        "tied": True,
        "gated": False,
        "num_encoder_layers": 1,
    },
}


class Row(NamedTuple):
    """A row of the table, in which a transform may be wrong."""

    t5x: str
    hf: str
    transposed: bool


def mistakes(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yields what is wrong, and the wrong rows: two names swapped, or one transform."""
    for row in rows:
        if "norm" not in row.t5x:
            wrong = "not transposed" if row.transposed else "transposed"
            yield f"{row.t5x} {wrong}", [row._replace(transposed=not row.transposed)]
    for a, b in itertools.combinations(rows, 2):
        if ("norm" in a.t5x) == ("norm" in b.t5x):
            yield f"{a.t5x} as {b.t5x}", [a._replace(hf=b.hf), b._replace(hf=a.hf)]


class Case(NamedTuple):
    """A network with its parameters, our logits of a batch, and transformers' model."""

    rows: list[Row]
    parameters: dict[str, np.ndarray]
    config: Any
    tokens: verification.Tokens
    ours: np.ndarray
    model: Any


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder: Path = tmp_path_factory.mktemp(request.param)
    parameters = writers.random_parameters(**SQUARE, **MODELS[request.param])
    export = huggingface.Export(open_checkpoint(writers.write_t5x(folder, parameters)))
    out = folder / "out"
    out.mkdir()
    huggingface.write_export(export, out)
    passed, report = verification.compare(export, out)
    assert passed, report
    config, params = writers.load_network(export)
    tokens = verification.sample_tokens(SIZE)
    ours = jitted_logits(config, params, tokens)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    assert {shape for e in export.entries for shape in (e.shape, e.hf_shape)} == {
        (SIZE,),
        (SIZE, SIZE),
    }
    rows = [Row(e.t5x, e.hf, e.transposed) for e in export.entries]
    return Case(rows, parameters, config, tokens, ours, model)


def jitted_logits(config: Any, params: Any, tokens: verification.Tokens) -> np.ndarray:
    """The logits of `verification.our_logits`, compiled, because there are many."""
    batch = {
        "encoder_input_tokens": tokens.encoder,
        "decoder_input_tokens": tokens.decoder,
        "decoder_target_tokens": np.ones_like(tokens.decoder),
    }
    return np.asarray(_apply(config, params, batch))


_apply = jax.jit(t5.apply, static_argnums=0)


def passes(case: Case, logits: np.ndarray) -> bool:
    """Whether verification would pass."""
    allowed = verification.tolerance(float(np.abs(case.ours).max()))
    return float(np.abs(case.ours - logits).max()) <= allowed


def tensor(case: Case, row: Row) -> Tensor:
    return array_tensor(row.t5x, case.parameters[row.t5x])


def test_writing(case: Case) -> None:
    weights = case.model.state_dict()

    def write(rows: list[Row]) -> None:
        for row in rows:
            written = tensor(case, row).view(row.hf, transposed=row.transposed).read()
            weights[row.hf].copy_(torch.from_numpy(np.ascontiguousarray(written)))

    right = {row.t5x: row for row in case.rows}
    unnoticed, number = [], 0
    for wrong, rows in mistakes(case.rows):
        number += 1
        write(rows)
        if passes(case, verification.their_logits(case.model, case.tokens)):
            unnoticed.append(wrong)
        write([right[row.t5x] for row in rows])
    assert not unnoticed and number > 450
    assert passes(case, verification.their_logits(case.model, case.tokens))


def test_reading(case: Case) -> None:
    there = {row.hf: tensor(case, row).view(row.hf, transposed=row.transposed) for row in case.rows}
    unnoticed = []
    for wrong, rows in mistakes(case.rows):
        read = {
            row.t5x: there[row.hf].view(row.t5x, transposed=row.transposed).read() for row in rows
        }
        params = unflatten_dict(case.parameters | read, sep="/")
        if passes(case, jitted_logits(case.config, params, case.tokens)):
            unnoticed.append(wrong)
    assert not unnoticed
