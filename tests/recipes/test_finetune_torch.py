"""`recipes.finetune` beside PyTorch, from models that transformers wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

import recipes
from mtf import builders
from mtf.data import loaders
from mtf.training import AdamWConfig
from tests import made_up, small

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

NUM_STEPS, BATCH_SIZE, LEARNING_RATE = 20, 8, 0.01
ANSWERS = {"red": "colour", "green": "colour", "cow": "animal", "duck": "animal", "plum": "fruit"}
SIZES = {"d_model": 32, "d_ff": 48, "num_heads": 2, "d_kv": 16}


def write_model(folder: Path, kind: str, texts: list[str]) -> Any:
    """Writes a random model with an output projection of its own; returns it."""
    num_layers = {"num_layers": 2, "num_decoder_layers": 1} if kind == "byt5" else {"num_layers": 1}
    name = {"mt5": "MT5", "umt5": "UMT5"}.get(kind, "T5")
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(
        getattr(transformers, f"{name}Config")(
            vocab_size=384,
            **SIZES,
            **num_layers,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )
    # Transformers 5 ties every T5, and then scales umT5's logits.
    model.lm_head.weight = torch.nn.Parameter(torch.randn(384, 32) / 32**0.5)
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    if kind == "byt5":
        transformers.ByT5Tokenizer().save_pretrained(folder)
        return model.train()
    model_file = made_up.sentencepiece_model(texts, num_pieces=100)
    (folder / "spiece.model").write_bytes(model_file)
    return model.train()


TEXTS = [f"{a} or {b}" for a in ANSWERS for b in ANSWERS]
LINES = [f"{text}\t{ANSWERS[text.split()[0]]}\n" for text in TEXTS]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 6, 7, 32])
def test_the_held_out_loss_is_the_mean_over_tokens(tmp_path: Path, batch_size: int) -> None:
    """The 25 rows are in whole batches, in a last batch of one row or of four, or in one batch."""
    model = write_model(tmp_path / "model", "byt5", [])
    (tmp_path / "data.tsv").write_text("".join(LINES))
    data = "checkpoint='model', train='data.tsv', validation='data.tsv'"
    values = f"steps=1, batch_size={batch_size}, learning_rate=0.0"
    settings = ("model.z_loss=0.0", "model.network.dtype=float32", "num_samples=0", "model_dir=run")
    small.run_process(
        [f"recipes.finetune({data}, {values})", "--set", *settings],
        tmp_path,
        XLA_FLAGS="",  # The tests' programs, which are not optimized, round less exactly.
    )
    (metrics,) = small.read_metrics(tmp_path / "run", "training_eval/files")
    found = metrics["loss_per_target_token"]

    loss, number = 0.0, 0
    for line in LINES:
        inputs, targets = (
            torch.tensor([[byte + 3 for byte in text.encode()] + [1]])
            for text in line.rstrip("\n").split("\t")
        )
        with torch.no_grad():
            loss += model(input_ids=inputs, labels=targets).loss.item() * targets.numel()
        number += targets.numel()
    assert found == pytest.approx(loss / number, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "mt5", "byt5", "umt5"])
def test_losses_are_those_of_pytorch(tmp_path: Path, kind: str) -> None:
    model = write_model(tmp_path / "model", kind, [*TEXTS, *ANSWERS.values()])
    (tmp_path / "train.tsv").write_text("".join(LINES))
    config = recipes.finetune(
        str(tmp_path / "model"), str(tmp_path / "train.tsv"), steps=NUM_STEPS, batch_size=BATCH_SIZE
    )
    config.model.network.dropout_rate, config.model.network.dtype = 0.0, "float32"
    config.model.z_loss = 0.0
    config.optimizer = fdl.Config(AdamWConfig, builders.schedule.constant(LEARNING_RATE))
    config.trainer.stats_period = 1
    config.model_dir = str(tmp_path / "run")
    job = fdl.build(config)
    job.run()
    rows = (tmp_path / "run" / "train" / "metrics.jsonl").read_text().splitlines()
    found = [row["loss"] for row in map(json.loads, rows) if "loss" in row]
    assert len(found) == NUM_STEPS

    batches = loaders.make_train_iterator(job.data, batch_size=BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    for step, ours in enumerate(found, 1):
        batch = next(batches)
        inputs, targets = (
            torch.tensor(batch[name]).long()
            for name in ("encoder_input_tokens", "decoder_target_tokens")
        )
        labels = targets.masked_fill(targets == 0, -100)
        loss = model(input_ids=inputs, attention_mask=(inputs > 0).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert ours == pytest.approx(loss.item(), rel=1e-4), step
