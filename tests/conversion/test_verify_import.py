"""Conversions from Hugging Face: the written checkpoint against its source in PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed (extra: torch)"
)

from conversion import Architecture, mapping  # noqa: E402
from mtf import convert  # noqa: E402
from tests.conversion import writers  # noqa: E402

MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "t5_1_0": ({"gated": False, "tied": True}, []),
    "mt5": ({"num_encoder_layers": 3}, ["--model-type", "mt5"]),
    "umt5": ({"bias_per_layer": True}, []),
}


def source(name: str, folder: Path) -> Path:
    """A Hugging Face directory as transformers 5 saves it."""
    sizes, options = MODELS[name]
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
def test_verified(
    name: str, to: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = source(name, tmp_path)
    if name == "umt5" and "--dtype" in options:
        # transformers 5 saves true: it scales the output, and mtf the projection before rounding.
        config = json.loads((path / "config.json").read_text())
        config["tie_word_embeddings"] = False
        (path / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert convert.main([str(path), str(tmp_path / "out"), "--to", to, *options]) == 0
    printed = capsys.readouterr().out
    assert "Verified: float32 logits" in printed


def test_a_wrong_table_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, right = source("t5_1_0", tmp_path), mapping.entries

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
