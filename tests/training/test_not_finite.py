"""Runs that fail because numbers are not finite, or because their directory is deleted."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import conversion
from mtf.base.errors import RunError, UserError
from mtf.base.progress import Progress
from mtf.base.signals import Interrupts
from mtf.checkpoints.manager import CheckpointManager, StateNotFiniteError, failures_explained
from mtf.checkpoints.settings import RestoreCheckpointConfig, SaveCheckpointConfig
from mtf.cli import run
from mtf.jobs import Train
from mtf.models.settings import ModelConfig
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.training import settings, watch
from mtf.training.loop import TrainLoop
from mtf.training.metrics import MetricsWriter, summarize
from mtf.training.settings import ScheduleConfig
from mtf.training.train_state import TrainState
from mtf.training.trainer import Trainer, loss_fn, starting_state
from mtf.training.watch import Watch
from tests import made_up, small
from tests.golden import engine


def strictly(text: str) -> Any:
    """Reads JSON as the standard has it, without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


NETWORK = made_up.network()


def make_trainer(
    schedule: settings.ScheduleConfig | None = None,
    optimizer: settings.GradientTransformation | None = None,
    **options: Any,
) -> Trainer:
    ours = settings.AdamWConfig(schedule or settings.ScheduleConfig("constant", 0.1))
    partitioner = PjitPartitioner.create(PartitionerConfig(), jax.devices()[:1])
    model = ModelConfig(NETWORK)
    return Trainer(model, optimizer or ours, partitioner, settings.TrainerConfig(**options))


def make_batch(weight: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
    batch = {name: rng.integers(2, 32, (2, 4)).astype(np.int32) for name in names}
    return {**batch, "decoder_loss_weights": np.full((2, 4), weight, np.float32)}


class Batches:
    """The same batch again and again."""

    def __next__(self) -> dict[str, np.ndarray]:
        return make_batch()

    def get_state(self) -> dict[str, Any]:
        return {}


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a run that diverged, and the error with which it ended."""
    run_dir = tmp_path_factory.mktemp("diverged")
    # From step 7 on (6 updates made) the learning rate is 1e28: that update overflows.
    schedule = settings.ScheduleConfig(
        "constant * decay_every", 0.01, decay_factor=1e30, steps_per_decay=6
    )
    trainer = make_trainer(schedule, stats_period=5, eval_period=None)
    return run_dir, run_until_it_diverges(trainer, run_dir)


def train(
    trainer: Trainer,
    run_dir: Path,
    train_steps: int = 20,
    batches: Batches | None = None,
    manager: CheckpointManager | None = None,
) -> None:
    """Trains from the initial state, by default with a checkpoint every two steps."""
    manager = manager or CheckpointManager(run_dir, SaveCheckpointConfig(period=2, keep=3))
    with Interrupts() as interrupts, contextlib.closing(manager):
        TrainLoop(
            trainer,
            batches or Batches(),  # type: ignore[arg-type]
            train_steps=train_steps,
            batch_size=2,
            checkpoints=manager,
            progress=Progress(train_steps, None, quiet=True),
            interrupts=interrupts,
            evaluations={},
        ).run(trainer.init_state(), setup_seconds=0.0)


def run_until_it_diverges(trainer: Trainer, run_dir: Path) -> str:
    """Trains until the run ends with an error; returns the error."""
    with pytest.raises(RunError) as error:
        train(trainer, run_dir)
    return str(error.value)


def test_a_run_that_diverges_says_what_to_try_and_where_to_go_on(
    diverged: tuple[Path, str],
) -> None:
    run_dir, said = diverged
    assert said.startswith("step 8: the loss is ")
    assert "and the gradient norm is nan (learning rate 1e+28). Training has diverged" in said
    assert "The last good checkpoint is from step 6." in said
    for setting in ("base_learning_rate=0.005", "clip_threshold=1", "skip_nonfinite_updates=True"):
        assert setting in said
    assert f"python -m mtf.run --from {run_dir} --set " in said


class Reckless:
    """A user's own optimizer, which has neither a learning rate nor mtf's settings."""

    def init(self, params: Any) -> dict[str, Any]:
        return {}

    def update(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map(lambda gradient: -1e30 * gradient, updates), state


@pytest.mark.parametrize("optimizer", [optax.sgd(1e30), Reckless()], ids=["optax", "own"])
def test_an_optimizer_without_a_known_learning_rate_diverges_in_words(
    optimizer: settings.GradientTransformation, tmp_path: Path
) -> None:
    said = run_until_it_diverges(make_trainer(optimizer=optimizer), tmp_path)
    assert re.match(r"step \d: the loss is .* gradient norm is \S+\. Training has diverged\.", said)
    assert "learning rate" not in said and "optimizer." not in said
    assert "skip_nonfinite_updates=True" in said


def test_its_good_checkpoints_stay_and_nothing_else_is_saved(diverged: tuple[Path, str]) -> None:
    run_dir, _ = diverged
    assert small.steps(run_dir) == [2, 4, 6]
    assert small.unfinished(run_dir) == []
    for tensor in conversion.open_checkpoint(run_dir).tensors.values():
        assert np.isfinite(tensor.read()).all()


def test_its_metrics_are_json_up_to_the_step_that_was_not_finite(
    diverged: tuple[Path, str],
) -> None:
    lines = [strictly(line) for line in (diverged[0] / "train" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == [5, 7, 8]
    assert all(line["weight_gradient_norm"] > 0 for line in lines[:2])
    assert lines[2]["weight_gradient_norm"] is None
    assert lines[2]["learning_rate"] == pytest.approx(1e28)


def test_a_failed_run_exits_with_1_and_its_message_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(job: Train) -> None:
        raise RunError("step 8: the loss is nan.")

    monkeypatch.setattr(Train, "run", fail)
    assert run.main(small.arguments(small.write_text(tmp_path), model_dir=tmp_path / "run")) == 1
    assert capsys.readouterr().err == "error: step 8: the loss is nan.\n"


def test_a_run_that_skips_every_update_ends(tmp_path: Path) -> None:
    def step(skipped: float) -> dict[str, Any]:
        return {"skipped_updates": np.float32(skipped)}

    out = io.StringIO()
    manager = CheckpointManager(tmp_path, SaveCheckpointConfig())
    watch = Watch(
        make_trainer(skip_nonfinite_updates=True),
        manager,
        MetricsWriter(tmp_path, "train", 0),
        Progress(1000, None, stream=out),
    )
    watch.count_skipped(60, [step(0.0)] + [step(1.0)] * 59)
    watch.count_skipped(100, [step(1.0)] * 39 + [step(0.0)])
    assert out.getvalue().splitlines()[1].startswith("step 100: skipped 39 of the last 40 updates")
    assert "(98 since this run started)" in out.getvalue()
    with pytest.raises(RunError, match="step 200: the last 100 updates were all skipped"):
        watch.count_skipped(200, [step(1.0)] * 100)
    manager.close()


@pytest.fixture(scope="module")
def skipping() -> Trainer:
    return make_trainer(skip_nonfinite_updates=True)


@pytest.fixture(scope="module")
def initial(skipping: Trainer) -> TrainState:
    """On the host; steps take its memory over, so each needs a copy."""
    return jax.device_get(skipping.init_state())


@pytest.mark.parametrize("weight", [np.nan, 3e38])  # The second overflows.
def test_a_skipped_update_leaves_all_but_the_step(
    skipping: Trainer, initial: TrainState, weight: float
) -> None:
    state, good = skipping.train_step(initial, make_batch())
    before = {name: np.array(value) for name, value in engine.flat(state).items()}
    state, bad = skipping.train_step(state, make_batch(weight))
    after = engine.flat(state)
    assert (before.pop("state/step"), after.pop("state/step")) == (1, 2)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    summary = summarize([good, bad])
    assert summary["skipped_updates"] == 1
    assert summary["loss"] == pytest.approx(float(good["loss"]))
    assert np.isnan(summarize([bad])["loss"]) or np.isinf(summarize([bad])["loss"])

    state, _ = skipping.train_step(state, make_batch())
    moved = engine.flat(state)
    assert any((moved[name] != value).any() for name, value in before.items())


def test_the_gradient_norm_is_that_of_all_gradients_together(
    skipping: Trainer, initial: TrainState
) -> None:
    batch = make_batch()

    def loss(params: Any) -> jax.Array:
        return loss_fn(skipping.model, params, batch, jnp.ones((2, 4)))[0]

    grads = jax.jit(jax.grad(loss))(initial.params)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)]).astype(np.float64)
    _, metrics = skipping.train_step(initial, batch)
    assert summarize([metrics])["weight_gradient_norm"] == pytest.approx(
        np.sqrt(np.sum(flat**2)), rel=1e-5
    )


def test_a_state_with_a_nan_in_a_slot_is_not_saved(initial: TrainState, tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, SaveCheckpointConfig(keep=1))
    state = jax.device_put(initial)
    manager.save(1, state.state_dict(), {})
    state.param_states["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]["nu"] += np.nan
    with pytest.raises(
        StateNotFiniteError, match=r"param_states/decoder/layers_0/mlp/wo/kernel/nu"
    ):
        manager.save(2, state.state_dict(), {})
    manager.close()
    assert small.steps(tmp_path) == [1]


def test_a_metric_that_is_not_finite_counts_as_not_measured(
    initial: TrainState, tmp_path: Path
) -> None:
    config = SaveCheckpointConfig(metric_name_to_monitor="train/loss", metric_mode="min")
    manager = CheckpointManager(tmp_path, config)
    state = jax.device_put(initial)
    manager.save(1, state.state_dict(), {}, {"train/loss": 1.5})
    manager.save(2, state.state_dict(), {}, {"train/loss": float("nan")})
    manager.wait()
    assert manager.best() == (tmp_path / "checkpoints" / "checkpoint_1", 1.5)
    manager.close()
    for file in (tmp_path / "checkpoints").rglob("metrics/metrics"):
        strictly(file.read_text())


def test_going_on_from_a_checkpoint_that_is_not_finite_is_refused(
    skipping: Trainer, initial: TrainState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = jax.device_put(initial)
    state.params["decoder"]["decoder_norm"]["scale"] += np.inf
    manager = CheckpointManager(tmp_path, SaveCheckpointConfig())
    with monkeypatch.context() as patch:  # As a version without this check would have saved it.
        patch.setattr("mtf.checkpoints.finite.not_finite", lambda arrays: [])
        manager.save(3, state.state_dict(), {})
    manager.close()
    bad = tmp_path / "checkpoints" / "checkpoint_3"
    with pytest.raises(
        UserError, match=r"in target/decoder/decoder_norm/scale\. Delete this checkpoint to"
    ):
        starting_state(skipping, tmp_path, None, 10)
    restore = RestoreCheckpointConfig(str(bad), "specific")
    with pytest.raises(UserError, match=r"Set checkpoint\.restore\.path to an earlier checkpoint"):
        starting_state(skipping, tmp_path / "new", restore, 10)


class Deletes(Batches):
    """Deletes a directory before the third batch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    def __next__(self) -> dict[str, Any]:
        self.number += 1
        if self.number == 3:
            while self.folder.exists():  # A checkpoint may be written at the same time.
                shutil.rmtree(self.folder, ignore_errors=True)
        return super().__next__()


@pytest.mark.parametrize("period", [2, 100])
def test_a_deleted_run_directory_is_not_created_again(tmp_path: Path, period: int) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    manager = CheckpointManager(run_dir, SaveCheckpointConfig(period=period))
    trainer = make_trainer(stats_period=1, eval_period=None)
    said = f"{run_dir}, or a part of it, was deleted during the run."
    with pytest.raises(RunError) as error, failures_explained(manager):
        train(trainer, run_dir, batches=Deletes(run_dir), manager=manager)
    assert str(error.value) == said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rate", "advised"), [(0.01, "0.005"), (1e6, "0.001")])
def test_the_advised_learning_rate_is_one_that_trains(
    tmp_path: Path, rate: float, advised: str
) -> None:
    trainer = make_trainer(ScheduleConfig("constant", rate))
    manager = CheckpointManager(tmp_path / "a run", SaveCheckpointConfig())
    said = str(watch.Watch(trainer, manager, None, None).failure("It diverged."))  # type: ignore[arg-type]
    assert f"base_learning_rate={advised}\n" in said
    assert f"--from '{tmp_path}/a run' --set" in said
