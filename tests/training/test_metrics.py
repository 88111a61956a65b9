"""What is shown of a loss."""

from __future__ import annotations

import dataclasses

import fiddle as fdl
import jax
import numpy as np
import pytest

import recipes
from mtf.partitioning.mesh import PjitPartitioner
from mtf.training.metrics import summarize
from mtf.training.trainer import Trainer


@pytest.mark.parametrize("factor", ["NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", 234496.0])
def test_the_loss_per_target_token_is_in_nats_whatever_the_loss_is_divided_by(
    factor: str | float,
) -> None:
    config = recipes.quickstart()
    network = config.model.network
    network.emb_dim, network.mlp_dim, network.num_heads, network.head_dim = 16, 32, 2, 8
    job = fdl.build(config)
    rng = np.random.default_rng(0)
    targets = rng.integers(3, 384, (4, 9)).astype(np.int32)
    weights = np.arange(9) < np.array([9, 5, 2, 7])[:, None]
    batch = {
        "encoder_input_tokens": rng.integers(3, 384, (4, 11)).astype(np.int32),
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": targets * weights,
        "decoder_loss_weights": weights.astype(np.int32),
    }

    def shown(loss_normalizing_factor: str | float | None) -> dict[str, float]:
        model = dataclasses.replace(job.model, loss_normalizing_factor=loss_normalizing_factor)
        partitioner = PjitPartitioner.create(job.partitioner, jax.devices()[:1])
        trainer = Trainer(model, job.optimizer, partitioner, job.trainer, job.random_seed)
        return summarize([trainer.eval_step(trainer.init_state().params, batch)])

    plain, divided = shown(None), shown(factor)
    assert divided["loss"] < plain["loss"] / 10
    assert plain["loss_per_target_token"] == pytest.approx(plain["loss"] / weights.sum(), rel=1e-6)
    assert divided["loss_per_target_token"] == pytest.approx(
        plain["loss_per_target_token"], rel=1e-5
    )
