"""What a swapped component loses is told."""

from __future__ import annotations

import pytest

from mtf.config import apply_overrides, resolve

T5X_FACTOR = 2048 * 114  # t5_1_1_finetune's, as in T5X's finetune gin
BASE = "model=@mtf.builders.model.t5_1_1(size='base')"
ADAMW = "optimizer=@mtf.training.AdamWConfig(learning_rate=@mtf.builders.schedule.constant)"


def warnings(capsys: pytest.CaptureFixture[str], config: object, *overrides: str) -> list[str]:
    capsys.readouterr()
    apply_overrides(config, overrides)  # type: ignore[arg-type]
    return capsys.readouterr().err.splitlines()


def test_a_loss_factor_that_the_recipe_set_is_named_with_what_keeps_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = resolve("recipes.t5_1_1_finetune(checkpoint='somewhere/checkpoint_1000000')")
    (line,) = warnings(capsys, config, BASE)
    kept = f"model.loss_normalizing_factor={float(T5X_FACTOR)}"
    assert line.startswith(f"warning: {BASE} replaces the whole component and drops {kept}")
    assert "(now None)" in line
    assert line.endswith(f"To keep these values, add --set {kept}")
    assert apply_overrides(config, [BASE, kept]).model.loss_normalizing_factor == T5X_FACTOR


@pytest.mark.parametrize(
    ("recipe", "overrides", "dropped"),
    [
        ("t5_1_1_base_c4", [BASE], ["model.network.dropout_rate=0.0 (now 0.1)"]),
        ("t5_1_1_base_c4", [BASE.replace("(", "(dropout_rate=0.2, ")], []),
        ("t5_1_1_base_c4", [BASE, "model.network.dropout_rate=0.1"], []),
        (
            "t5_1_1_base_c4",
            ["model.z_loss=0.5", BASE],
            ["model.z_loss=0.5 (now 0.0001)", "dropout"],
        ),
        ("t5_1_1_base_c4", ["optimizer.global_norm_clip_threshold=1.0", ADAMW], ["clip_threshold"]),
        # What only says that it was another builder is not a loss.
        ("quickstart", [ADAMW], []),
        ("t5_1_1_base_c4", ["optimizer.learning_rate=@mtf.builders.schedule.constant"], []),
        ("quickstart", ["model.network.emb_dim=16"], []),
    ],
)
def test_what_counts_as_lost(
    capsys: pytest.CaptureFixture[str], recipe: str, overrides: list[str], dropped: list[str]
) -> None:
    lines = warnings(capsys, resolve(f"recipes.{recipe}"), *overrides)
    assert len(lines) == bool(dropped), lines
    assert all(part in lines[0] for part in dropped), lines
