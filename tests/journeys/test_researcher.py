"""A researcher: own layers, task, metric, optimizer and loss; diff, sweep, and trackers."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
from pathlib import Path

import pytest
from tensorboardX.proto import event_pb2

from mtf.data.seqio.tfrecord import read_records
from tests import small
from tests.journeys import shell

CODE = '''
import fiddle as fdl
import jax
import jax.numpy as jnp
import optax

import mtf
import recipes
from mtf.data import ByteVocabulary, TaskMixtureConfig, tasks


def to_text(row):
    return {"inputs": row["word"], "targets": row["word"][::-1]}


def first_letter(targets, predictions):
    same = [t[:1] == p[:1] for t, p in zip(targets, predictions)]
    return 100.0 * sum(same) / len(same)


def focal(logits, batch, weights):
    log_p = jax.nn.log_softmax(logits)
    log_p = jnp.take_along_axis(log_p, batch["decoder_target_tokens"][..., None], -1)[..., 0]
    loss = -((1 - jnp.exp(log_p)) ** 2) * log_p
    return jnp.sum(loss * weights), {"cross_entropy": -jnp.sum(log_p * weights)}


tasks.register(
    "reversed",
    tasks.FileSource({"train": "words.csv", "validation": "words.csv"}),
    to_text,
    metrics=["research.first_letter"],
)


def recipe() -> fdl.Config[mtf.jobs.Train]:
    """Trains a tiny model to reverse words."""
    config = recipes.pretrain_text()
    network = config.model.network
    network.num_encoder_layers, network.num_decoder_layers = 3, 1
    network.emb_dim, network.mlp_dim, network.num_heads, network.head_dim = 32, 64, 2, 16
    config.model.loss_fn = focal
    config.data = fdl.Config(
        TaskMixtureConfig,
        mixture_or_task_name="reversed",
        module="research",
        loader="memory",
        vocabulary=fdl.Config(ByteVocabulary),
        task_feature_lengths={"inputs": 16, "targets": 16},
    )
    config.optimizer = fdl.Config(optax.adamw, learning_rate=3e-3)
    config.evaluator = fdl.Config(mtf.evaluation.InferEvalConfig, period=4, num_examples=8)
    config.train_steps = 8
    config.batch_size = 8
    config.trainer.stats_period = 1
    config.trainer.eval_period = 4
    return config
'''
NOTEBOOK = """
import fiddle as fdl

import mtf
import recipes
import research

config = research.recipe()
config.model_dir = "run"
config.trackers = TRACKERS
print(*mtf.config.diff(recipes.pretrain_text(), config), sep="\\n")
result = mtf.config.run(config)
print("ended at", result.step)
"""


@pytest.mark.slow
def test_a_researcher(tmp_path: Path) -> None:
    words = ["".join(random.Random(i).choices("abcdef", k=5)) for i in range(64)]
    (tmp_path / "words.csv").write_text("word\n" + "".join(f"{word}\n" for word in words))
    (tmp_path / "research.py").write_text(CODE)
    has_wandb, has_mlflow = (importlib.util.find_spec(x) for x in ("wandb", "mlflow"))
    store = "tracking_uri='sqlite:///mlflow.db', experiment='t5'"
    trackers = ["fdl.Config(mtf.training.trackers.Wandb, project='t5')"] * bool(has_wandb)
    trackers += [f"fdl.Config(mtf.training.trackers.MLflow, {store})"] * bool(has_mlflow)
    notebook = NOTEBOOK.replace("TRACKERS", f"({''.join(f'{each}, ' for each in trackers)})")
    (tmp_path / "notebook.py").write_text(notebook)
    said = shell("python notebook.py", tmp_path, WANDB_MODE="offline")
    assert "ended at 8\n" in said
    for changed in ("model.network.num_encoder_layers", "model.loss_fn", "optimizer", "data"):
        assert changed in said

    lines = {line["step"]: line for line in small.read_metrics(tmp_path / "run")}
    losses = {step: line["loss"] for step, line in lines.items()}
    assert list(losses) == list(range(1, 9)) and losses[8] < losses[1]
    assert all(line["loss"] < line["loss_fn/cross_entropy"] for line in lines.values())
    decoded = small.read_metrics(tmp_path / "run", "inference_eval/reversed")
    assert [line["step"] for line in decoded] == [4, 8]
    assert all(0 <= line["first_letter"] <= 100 for line in decoded)

    (events,) = (tmp_path / "run" / "train").glob("events.out.tfevents.*")
    read = [event_pb2.Event.FromString(record) for record in read_records(events)]
    shown = {
        event.step: value.simple_value
        for event in read
        for value in event.summary.value
        if value.tag == "loss"
    }
    assert shown == pytest.approx(losses, rel=1e-6)
    if has_wandb:
        from tests.trackers.test_tracking import _records

        (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
        history = [
            {".".join(x.nested_key): json.loads(x.value_json) for x in record.history.item}
            for record in _records(folder)
        ]
        assert {x["step"]: x["train/loss"] for x in history if "train/loss" in x} == losses
    if has_mlflow:
        import mlflow

        client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
        (experiment,) = [x for x in client.search_experiments() if x.name == "t5"]
        (tracked,) = client.search_runs([experiment.experiment_id])
        history = client.get_metric_history(tracked.info.run_id, "train/loss")
        assert {each.step: each.value for each in history} == losses
        assert tracked.data.params["model.network.num_encoder_layers"] == "3"

    if not importlib.util.find_spec("optuna"):
        return
    metric = "inference_eval/reversed/first_letter"
    sweep = f"--sweep optimizer.learning_rate=0.001,0.003 --sweep-metric {metric}"
    shell(f"python -m mtf.run research.py:recipe --set model_dir=sweep {sweep}", tmp_path)
    with (tmp_path / "sweep" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["optimizer.learning_rate"] for row in rows} == {"0.001", "0.003"}
    assert [row["state"] for row in rows] == ["finished"] * 2
    # The second run has the learning rate of the notebook's.
    of_second = small.read_metrics(tmp_path / "sweep" / "001")
    assert [line["loss"] for line in of_second] == list(losses.values())
    best = [float(row[metric]) for row in rows]
    assert best == sorted(best, reverse=True)
