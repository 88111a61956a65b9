"""`--config` with a config.json of Hugging Face: its settings, and what contradicts the tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conversion import open_checkpoint
from mtf import convert
from mtf.inference.opening import open_model
from tests.conversion import writers

CONFIG: dict[str, Any] = {
    "model_type": "mt5",
    "vocab_size": 384,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "feed_forward_proj": "gated-silu",
    "dropout_rate": 0.2,
    "relative_attention_max_distance": 64,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
}
SETTINGS = ("feed_forward_proj", "dropout_rate", "relative_attention_max_distance")
IDS = ("decoder_start_token_id", "eos_token_id", "pad_token_id")


def write_config(folder: Path, **values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | values))
    return path


@pytest.mark.parametrize("as_directory", [False, True])
def test_settings_of_hugging_face(
    as_directory: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters())
    config = write_config(tmp_path)
    config = config.parent if as_directory else config
    out = tmp_path / "out"
    options = ["--to", "hf", "--config", str(config)]
    assert convert.main([str(source), str(out), *options]) == 0
    printed = capsys.readouterr().out
    assert f"The settings are those in {config}. Inputs are assumed to end with EOS\n" in printed
    assert "as in the published T5 models" not in printed
    written = json.loads((out / "config.json").read_text())
    for name in ("model_type", *SETTINGS, *IDS):
        assert written[name] == CONFIG[name]
    described = open_checkpoint(out).described
    assert described["mlp_activations"] == ("silu", "linear")
    assert [described["special_ids"][name] for name in IDS] == [0, 2, 1]

    opened = open_model(source, vocabulary="byt5", config=config)
    assert opened.model.network.mlp_activations == ("silu", "linear")
    assert opened.model.network.relative_attention_max_distance == 64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"d_ff": 40},
            "wrong shape: target/decoder/layers_0/mlp/wi_0/kernel has (32, 48); config.json "
            "implies (32, 40)",
        ),
        (
            {"model_type": "umt5"},
            "missing: target/decoder/layers_0/relpos_bias/rel_embedding, shape (3, 32)",
        ),
        (
            {"model_type": "t5", "tie_word_embeddings": True},
            "unexpected: target/decoder/logits_dense/kernel, shape (32, 384)",
        ),
        ({"eos_token_id": 3}, "eos_token_id is 3; only T5's value 1 is supported"),
    ],
)
def test_contradictions_are_refused(
    values: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters())
    config = write_config(tmp_path, **values)
    out = tmp_path / "out"
    assert convert.main([str(source), str(out), "--to", "hf", "--config", str(config)]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert str(config) in printed
    assert not out.exists()
