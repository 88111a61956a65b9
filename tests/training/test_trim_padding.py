"""`trainer.trim_padding`: the same losses from shorter rows, also after a resume."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import small

SETTINGS = {"data__pack": False, "trainer__eval_period": 4, "checkpoint__save__period": 4}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Pairs of which few are as long as a row: those of a batch need different lengths."""
    rng = random.Random(0)
    lines = []
    for number in range(200):
        size = 28 if number % 20 == 0 else rng.randint(2, 9)
        lines.append(f"{'ab' * (size // 2)}\t{'x' * rng.choice([1, 2, 12])}\n")
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(lines))
    return file


def run(pairs: Path, name: str, **settings: object) -> str:
    return small.run(
        small.arguments(pairs, model_dir=name, **{**SETTINGS, "train_steps": 8, **settings}),
        pairs.parent,
    )


@pytest.mark.slow
def test_losses_do_not_change_and_less_is_computed(tmp_path: Path, pairs: Path) -> None:
    without = {"model__network__dropout_rate": 0.0}
    said = run(pairs, "trimmed", **without, trainer__trim_padding=True)
    assert "at most 384 tokens per step" in said  # 8 rows of 32 + 16
    run(pairs, "whole", **without)
    for kind in ("train", "training_eval/held_out"):
        found, expected = (
            small.read_metrics(tmp_path / name, kind) for name in ("trimmed", "whole")
        )
        for line, other in zip(found, expected, strict=True):
            for name in ("loss_per_target_token", "accuracy", "effective_batch_size/encoder"):
                assert line[name] == pytest.approx(other[name], rel=1e-5)
            for side in ("encoder", "decoder"):
                name = f"non_padding_fraction/{side}"
                assert line[name] >= other[name]
        parts = [
            other["non_padding_fraction/encoder"] / line["non_padding_fraction/encoder"]
            for line, other in zip(found, expected, strict=True)
        ]
        assert min(parts) < 0.8
        if kind == "train":  # One batch each: 16 or 24 of 32 tokens, or all.
            assert {round(32 * part, 4) for part in parts} <= {16, 24, 32}


def test_a_loss_that_depends_on_padding_is_refused(tmp_path: Path) -> None:
    factor = {"model__loss_normalizing_factor": "NUM_TOTAL_TARGET_TOKENS"}
    arguments = small.arguments("absent.txt", **factor, trainer__trim_padding=True)
    said = small.run(arguments, tmp_path, status=2)
    assert "trainer.trim_padding changes the number of padding tokens" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, pairs: Path) -> None:
    """With dropout, whose choices depend on the lengths of a batch."""
    said = run(pairs, "whole", trainer__trim_padding=True)
    run(pairs, "stopped", trainer__trim_padding=True, train_steps=4)
    small.run(["--from", "stopped", "--set", "train_steps=8"], tmp_path)
    small.assert_same_end(tmp_path / "stopped", tmp_path / "whole", 8)
    note = "tokens (trainer.trim_padding), compiled in"
    later = [line for line in said.splitlines() if note in line]
    assert 1 <= len(later) <= 5  # lengths 16, 24 and 32 of inputs, 8 and 16 of targets
