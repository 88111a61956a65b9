"""A user of T5X: gin files, a task of SeqIO and a SentencePiece model of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import made_up, small
from tests.gin import example
from tests.journeys import shell

TASKS = """
import seqio
import tensorflow as tf


def to_text(dataset):
    return dataset.map(
        lambda line: {"inputs": tf.strings.join(["copy: ", line]), "targets": line}
    )


def exact(targets, predictions):
    return {"exact": 100.0 * sum(map(str.__eq__, targets, predictions)) / len(targets)}


feature = seqio.Feature(seqio.SentencePieceVocabulary("own.model"))
seqio.TaskRegistry.add(
    "copied",
    source=seqio.TextLineDataSource({"train": "lines.txt", "validation": "held_out.txt"}),
    preprocessors=[to_text, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features={"inputs": feature, "targets": feature},
    metric_fns=[exact],
)
"""
GIN = """
include "t5x/examples/t5/t5_1_1/small.gin"
include "t5x/configs/runs/pretrain.gin"

import seqio

MIXTURE_OR_TASK_NAME = "copied"
MIXTURE_OR_TASK_MODULE = "own_tasks"
TASK_FEATURE_LENGTHS = {"inputs": 32, "targets": 32}
TRAIN_STEPS = 8
BATCH_SIZE = 8
DROPOUT_RATE = 0.0
USE_CACHED_TASKS = False
network.T5Config:
  dtype = "float32"
  vocab_size = 512
  emb_dim = 32
  num_heads = 2
  num_encoder_layers = 1
  num_decoder_layers = 1
  head_dim = 16
  mlp_dim = 64
utils.SaveCheckpointConfig.period = 4
train_script.train.eval_period = 4
train_script.train.eval_steps = 1
seqio.SentencePieceVocabulary.sentencepiece_model_file = "own.model"
"""


@pytest.mark.slow
def test_a_t5x_user(tmp_path: Path) -> None:
    pytest.importorskip("seqio", reason="SeqIO is not installed (extra: seqio)")
    pytest.importorskip("gin", reason="gin-config is not installed (extra: gin)")
    texts = [*made_up.lines("en")]
    model = made_up.sentencepiece_model(texts, num_pieces=300)
    (tmp_path / "own.model").write_bytes(model)
    (tmp_path / "lines.txt").write_text("".join(f"{line[:40]}\n" for line in texts))
    (tmp_path / "held_out.txt").write_text("".join(f"{line[:30]}\n" for line in texts[:6]))
    (tmp_path / "own_tasks.py").write_text(TASKS)
    (tmp_path / "own.gin").write_text(GIN)
    example.write_t5x(tmp_path)

    launch = "python -m t5x.train --gin_file=own.gin --gin.MODEL_DIR=\"'run'\" --alsologtostderr"
    shell(f"python -m mtf gin {launch} --output own_recipe.py", tmp_path)
    assert "copied" in shell("python -m mtf.run own_recipe.py:recipe --dry-run", tmp_path)
    shell("python -m mtf.run own_recipe.py:recipe", tmp_path)
    assert small.steps(tmp_path / "run") == [4, 8]
    losses = [line["loss"] for line in small.read_metrics(tmp_path / "run") if "loss" in line]
    assert losses

    evaluate = "checkpoint='run', mixture_or_task_name='copied', checkpoint_steps='all'"
    own = "data.module=own_tasks data.task_feature_lengths=\"{'inputs': 32, 'targets': 32}\""
    shell(f'python -m mtf.run "recipes.evaluate({evaluate})" --set {own} output_dir=out', tmp_path)
    header, *rows = (tmp_path / "out" / "steps.tsv").read_text().splitlines()
    assert [row.split("\t")[0] for row in rows] == ["4", "8"] and "exact" in header

    (tmp_path / "questions.txt").write_text("copy: one\ncopy: two\n")
    infer = "recipes.infer(checkpoint='run', files='questions.txt')"
    shell(f'python -m mtf.run "{infer}" --set output_dir=answers', tmp_path)
    (answers,) = (tmp_path / "answers").glob("*.jsonl*")
    assert len([json.loads(line) for line in answers.read_text().splitlines()]) == 2

    for target in ("hf", "t5x"):
        shell(f"python -m mtf.convert run out_{target} --to {target}", tmp_path)
    assert (tmp_path / "out_hf" / "spiece.model").read_bytes() == model
    said = shell("python -m mtf.convert --compare run out_t5x", tmp_path)
    assert not re.search("differ", said), said
