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


@pytest.mark.parametrize(
    "factor",
    [None, 234496.0, "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"],
)
@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_the_loss_per_target_token_is_the_mean_over_tokens_not_over_batches(
    factor: str | float | None, num_microbatches: int
) -> None:
    """Batches of 4 + 4 and 1 + 0 tokens: the mean of the batches' means would be another one."""
    full = {**make_batch(), "decoder_loss_weights": np.ones((2, 4), np.float32)}
    one = np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    short = {**make_batch(), "decoder_loss_weights": one}
    params = t5.init_params(NETWORK, jax.random.PRNGKey(0))
    model = ModelConfig(NETWORK, z_loss=0.0, loss_normalizing_factor=factor)  # type: ignore[arg-type]
    trainer = make_trainer(num_microbatches=num_microbatches)
    trainer = dataclasses.replace(trainer, model=model)

    logits = np.asarray(t5.apply(NETWORK, params, full), np.float64)  # the same for `short`
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = full["decoder_target_tokens"]
    nats = -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    expected = (nats.sum() + nats[0, 0]) / 9

    evaluated = summarize([trainer.eval_step(params, batch) for batch in (full, short)])
    assert evaluated["loss_per_target_token"] == pytest.approx(expected, rel=1e-6)
    state = dataclasses.replace(trainer.init_state(), params=params)
    trained = summarize([trainer.train_step(jax.tree.map(np.array, state), short)[1]])
    assert trained["loss_per_target_token"] == pytest.approx(nats[0, 0], rel=1e-6)
