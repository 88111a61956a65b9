"""Verification in both directions, with the parameters of one layer in memory at a time."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.small import python

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed (extra: torch)"
)

from safetensors.numpy import load_file, save_file  # noqa: E402

from conversion import (  # noqa: E402
    Architecture,
    ConversionError,
    huggingface,
    mapping,
    open_checkpoint,
)
from mtf import convert  # noqa: E402
from mtf.jobs.convert import export as exports  # noqa: E402
from mtf.jobs.convert import verification  # noqa: E402
from tests.conversion import writers  # noqa: E402

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module", params=["t5_1_1", "umt5"])
def export(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[huggingface.Export, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    parameters = writers.random_parameters(bias_per_layer=request.param == "umt5")
    export = huggingface.Export(open_checkpoint(writers.write_t5x(folder, parameters)))
    (folder / "out").mkdir()
    huggingface.write_export(export, folder / "out")
    return export, folder / "out"


def changed(directory: Path, out: Path, change: Callable[[Tensors], None]) -> Path:
    """A copy of a Hugging Face directory with other tensors."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    out.mkdir()
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_bytes((directory / "config.json").read_bytes())
    return out


@pytest.mark.parametrize(
    "name",
    [
        "shared.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "decoder.block.1.layer.2.layer_norm.weight",
    ],
)
def test_a_broken_tensor_fails(
    export: tuple[huggingface.Export, Path], name: str, tmp_path: Path
) -> None:
    def change(tensors: Tensors) -> None:
        # A single row, or a single weight of a norm.
        tensors[name][-1] = tensors[name][-1] * 1.5 + 0.5

    def sort(tensors: Tensors) -> None:
        # All rows, as the tokens of the batches are not the whole vocabulary.
        tensors[name].sort(axis=0)

    source, directory = export
    out = changed(directory, tmp_path / "out", sort if name == "shared.weight" else change)
    passed, report = verification.compare(source, out)
    assert not passed
    assert "VERIFICATION FAILED" in report


def test_other_tensors_are_refused(export: tuple[huggingface.Export, Path], tmp_path: Path) -> None:
    source, directory = export
    query, norm = (
        "encoder.block.1.layer.0.SelfAttention.q.weight",
        "encoder.final_layer_norm.weight",
    )

    def change(tensors: Tensors) -> None:
        tensors["extra.weight"] = tensors.pop(query)
        tensors[norm] = tensors[norm][:5].copy()

    out = changed(directory, tmp_path / "out", change)
    with pytest.raises(ConversionError) as caught:
        verification.compare(source, out)
    for problem in (f"missing: {query}", "unexpected: extra", f"wrong shape: {norm}"):
        assert problem in str(caught.value)


def test_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "VERIFY_BY_DEFAULT", True)
    source = writers.write_t5x(tmp_path, writers.random_parameters())

    def printed(out: str, *options: str) -> str:
        arguments = [str(source), str(tmp_path / out), "--to", "hf", *options]
        assert convert.main(arguments) == 0
        assert (tmp_path / out / "config.json").is_file()
        return capsys.readouterr().out

    assert "Verified: float32 logits" in printed("fits")
    assert "erified" not in printed("off", "--no-verify")
    assert "Logits not compared: NaN and infinity" in printed("non_finite", "--allow-non-finite")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    assert "Logits not compared: torch not installed" in printed("absent")


SOURCES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "t5_1_0": ({"gated": False, "tied": True}, []),
    "mt5": ({"num_encoder_layers": 3}, ["--model-type", "mt5"]),
    "umt5": ({"bias_per_layer": True}, []),
}


def huggingface_source(name: str, folder: Path) -> Path:
    """A Hugging Face directory as transformers 5 saves it."""
    sizes, options = SOURCES[name]
    checkpoint = writers.write_t5x(folder, writers.random_parameters(**sizes))
    arguments = [str(checkpoint), str(folder / "hf"), "--to", "hf", "--vocabulary", "none"]
    assert convert.main([*arguments, *options]) == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "hf")
    model.save_pretrained(folder / "saved")
    return folder / "saved"


@pytest.mark.parametrize(
    ("name", "to", "options"),
    [
        ("t5_1_0", "t5x", ["--verify"]),
        ("mt5", "mtf", ["--verify"]),
        ("umt5", "t5x_orbax", ["--verify", "--dtype", "bfloat16"]),
    ],
)
def test_conversions_from_hugging_face_are_verified(
    name: str, to: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = huggingface_source(name, tmp_path)
    if name == "umt5":
        # transformers 5 saves true: it scales the output, and mtf the projection before rounding.
        config = json.loads((path / "config.json").read_text())
        config["tie_word_embeddings"] = False
        (path / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert convert.main([str(path), str(tmp_path / "out"), "--to", to, *options]) == 0
    printed = capsys.readouterr().out
    assert "Verified: float32 logits" in printed


def test_a_wrong_table_fails_from_hugging_face(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, right = huggingface_source("t5_1_0", tmp_path), mapping.entries

    def entries(sizes: Architecture) -> list[mapping.Entry]:
        swapped = {".q.": ".k.", ".k.": ".q."}
        return [
            entry._replace(hf=entry.hf.replace(part, swapped.get(part, part)))
            for entry in right(sizes)
            for part in [entry.hf[-9:-6]]
        ]

    monkeypatch.setattr(mapping, "entries", entries)
    out = tmp_path / "there" / "out"
    assert convert.main([str(path), str(out), "--to", "t5x", "--verify"]) == 1
    assert "VERIFICATION FAILED: nothing was written" in capsys.readouterr().out
    assert not out.exists()


def test_the_tolerance_grows_with_the_logits() -> None:
    assert verification.tolerance(0.5) == verification.tolerance(5.0) == 1e-4
    assert verification.tolerance(50.0) == pytest.approx(1e-3)
    assert verification.tolerance(float("nan")) == 1e-4


_MEASURE = """
import resource, sys
from pathlib import Path
import torch, transformers
from conversion import huggingface, open_checkpoint
from mtf.jobs.convert import verification

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
export, before = huggingface.Export(open_checkpoint(sys.argv[1])), peak()
passed, report = verification.compare(export, Path(sys.argv[2]))
print(passed, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory in Linux's unit")
def test_memory_is_that_of_a_layer(tmp_path: Path) -> None:
    sizes = {"emb_dim": 512, "num_heads": 8, "head_dim": 64, "mlp_dim": 4096, "vocab_size": 2000}
    layers = {"num_encoder_layers": 14, "num_decoder_layers": 14}
    parameters = writers.random_parameters(**sizes, **layers)
    total = sum(array.nbytes for array in parameters.values())
    export = huggingface.Export(
        open_checkpoint(writers.write_t5x(tmp_path, parameters, compress=False))
    )
    del parameters
    (tmp_path / "out").mkdir()
    huggingface.write_export(export, tmp_path / "out")
    done = python("-c", _MEASURE, str(export.checkpoint.path), str(tmp_path / "out"))
    passed, growth = done.stdout.split()
    assert passed == "True"
    # What JAX, PyTorch and transformers import later, and one layer (34 MB) with its copies.
    assert int(growth) < 400e6 < 0.5 * total
