"""What is shown of a loss, and the plot."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from mtf.models import t5
from mtf.models.settings import ModelConfig
from mtf.training import metrics
from mtf.training.metrics import plot_curves, summarize
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


def _write(folder: Path, *lines: str) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_the_plot_shows_a_run_with_a_single_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of two steps: one point of each loss, which are the same, and whole steps only."""
    _write(tmp_path / "train", '{"step": 2, "loss_per_target_token": 1.5, "accuracy": 0.5}')
    line = '{"step": 2, "loss_per_target_token": 1.5}'
    _write(tmp_path / "training_eval" / "held_out", line)
    scores = ('{"step": 1, "accuracy": 25.0, "bleu": 3}', '{"step": 2, "accuracy": null}')
    _write(tmp_path / "inference_eval" / "held_out", *scores)
    drawn: list[Figure] = []
    monkeypatch.setattr(metrics, "write_figure", lambda figure, file: drawn.append(figure))

    assert plot_curves(tmp_path, "my_recipe", ["held_out"], ["held_out"]) == tmp_path / "loss.png"
    [figure] = drawn
    assert figure.get_suptitle() == "my_recipe"
    losses, decoded = figure.axes
    assert losses.get_ylabel() == "loss\n(nats per target token)"
    train, evaluation = losses.get_lines()
    assert [line.get_label() for line in (train, evaluation)] == ["train", "evaluation: held_out"]
    assert train.get_xydata().tolist() == evaluation.get_xydata().tolist() == [[2.0, 1.5]]
    assert train.get_marker() != evaluation.get_marker()
    assert train.get_markersize() > evaluation.get_markersize() > 0
    accuracy, bleu = decoded.get_lines()
    assert [line.get_label() for line in (accuracy, bleu)] == [
        "held_out: accuracy",
        "held_out: bleu",
    ]
    assert accuracy.get_ydata()[0] == 25.0 and np.isnan(accuracy.get_ydata()[1])
    figure.canvas.draw()
    assert all(tick == round(tick) for tick in decoded.get_xticks())


def test_the_plot_marks_the_best_checkpoint_and_says_what_the_loss_contains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        f'{{"step": {step}, "loss_per_target_token": 1, "z_loss": {step}}}' for step in range(3)
    )
    _write(tmp_path / "train", *lines)
    _write(tmp_path / "inference_eval" / "held_out", '{"step": 1, "accuracy": 25.0}')
    drawn: list[Figure] = []
    monkeypatch.setattr(metrics, "write_figure", lambda figure, file: drawn.append(figure))
    plot_curves(tmp_path, "my_recipe", [], ["held_out"], best=1)
    losses, decoded = drawn[0].axes
    assert losses.get_ylabel() == "loss with z-loss\n(nats per target token)"
    for axes in (losses, decoded):
        line = axes.get_lines()[-1]
        assert line.get_label() == "best checkpoint"
        assert set(line.get_xdata()) == {1}


def test_a_run_that_decodes_nothing_has_one_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (f'{{"step": {step}, "loss_per_target_token": 1}}' for step in range(1000))
    _write(tmp_path / "train", *lines)
    drawn: list[Figure] = []
    monkeypatch.setattr(metrics, "write_figure", lambda figure, file: drawn.append(figure))
    plot_curves(tmp_path, "my_recipe", [], [])
    [axes] = drawn[0].axes
    assert [line.get_marker() for line in axes.get_lines()] == [""]
