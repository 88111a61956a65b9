"""What is shown of a loss."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from mtf.models import t5
from mtf.models.settings import ModelConfig
from mtf.training.metrics import summarize
from tests.training.test_not_finite import NETWORK, make_batch, make_trainer


def test_the_loss_per_target_token_is_in_nats_whatever_the_loss_is_divided_by() -> None:
    weights = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32)
    batch = {**make_batch(), "decoder_loss_weights": weights}
    batch["decoder_target_tokens"] *= weights
    params = t5.init_params(NETWORK, jax.random.PRNGKey(0))

    def shown(factor: str | float | None) -> dict[str, float]:
        model = ModelConfig(NETWORK, loss_normalizing_factor=factor)  # type: ignore[arg-type]
        return summarize(
            [dataclasses.replace(make_trainer(), model=model).eval_step(params, batch)]
        )

    plain = shown(None)
    assert plain["loss_per_target_token"] == pytest.approx(plain["loss"] / 6, rel=1e-6)
    for factor, size in (
        ("NUM_REAL_TARGET_TOKENS", 6),
        ("NUM_TOTAL_TARGET_TOKENS", 8),
        (234496.0, 234496),
    ):
        divided = shown(factor)
        assert divided["loss"] == pytest.approx(plain["loss"] / size, rel=1e-5)
        assert divided["loss_per_target_token"] == pytest.approx(
            plain["loss_per_target_token"], rel=1e-5
        )
