"""Checkpoints of all formats are loaded as the same model, with the right vocabulary."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import fiddle as fdl
import jax
import ml_dtypes
import numpy as np
import pytest

import conversion
import mtf
import recipes
from mtf.base.errors import UserError
from mtf.cli.convert import command as convert
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary
from mtf.inference.loading import Loaded, load_model
from mtf.inference.opening import checkpoint_vocabulary, open_model
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.training.trainer import Trainer
from tests.conversion import writers
from tests.inference import models


def flat(params: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {"/".join(entry.key for entry in path): np.asarray(x) for path, x in leaves}


def assert_is_the_model(loaded: Loaded) -> None:
    expected = writers.random_parameters(**models.SIZES, seed=2)
    found = flat(loaded.params)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def load(path: Path | str, **options: Any) -> Loaded:
    dtype = options.pop("dtype", "float32")
    partitioner = PjitPartitioner.create(PartitionerConfig())
    return load_model(open_model(path, **options), dtype, partitioner)


def refused(path: Path | str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(path, **options)
    return str(caught.value)


def test_t5x_orbax_run_directory_and_hugging_face_are_one_model(tmp_path: Path) -> None:
    t5x = models.write_checkpoint(tmp_path / "a")
    orbax = writers.write_orbax(tmp_path / "b", writers.random_parameters(**models.SIZES, seed=2))
    run = models.write_run(tmp_path / "run", step=12)
    hf = models.write_huggingface(tmp_path / "c", "--vocabulary", "byt5")
    shutil.copytree(run / "checkpoints" / "checkpoint_12", run / "checkpoints" / "checkpoint_9")
    assert load(run, step=9).checkpoint.step == 9
    assert "no checkpoint of step 10; it has 9, 12" in refused(run, step=10)
    for path, step in [
        (t5x, 7),
        (t5x.parent, 7),
        (orbax, 7),
        (run, 12),
        (run / "checkpoints" / "checkpoint_12", 12),
        (hf, None),
    ]:
        loaded = load(path)
        assert loaded.checkpoint.step == step
        assert_is_the_model(loaded)


def test_a_run_tells_vocabulary_activations_and_whether_inputs_end(tmp_path: Path) -> None:
    settings = {
        "data__inputs_add_eos": False,
        "data__vocabulary__extra_ids": 120,
        "model__network__mlp_activations": ("silu", "linear"),
        "model__network__relative_attention_max_distance": 64,
        "model__z_loss": 0.01,
    }
    loaded = load(models.write_run(tmp_path, **settings))
    assert loaded.vocabulary == ByteVocabulary(120)
    assert loaded.inputs_add_eos is False
    assert loaded.model.network.mlp_activations == ("silu", "linear")
    assert loaded.model.network.relative_attention_max_distance == 64
    assert loaded.model.z_loss == 0.01


def test_bfloat16_is_of_parameters_and_activations(tmp_path: Path) -> None:
    loaded = load(models.write_checkpoint(tmp_path), dtype="bfloat16")
    assert loaded.model.network.dtype == "bfloat16"
    expected = writers.random_parameters(**models.SIZES, seed=2)
    for name, value in flat(loaded.params).items():
        np.testing.assert_array_equal(value, expected[name].astype(ml_dtypes.bfloat16))
    assert "float16" in refused(tmp_path, dtype="float16")


def test_a_vocabulary_that_only_the_size_tells_is_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = models.write_checkpoint(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert load(path).vocabulary == ByteVocabulary()
    assert "embedding of 384 rows, so the vocabulary of byt5 is assumed" in caplog.text
    caplog.clear()
    assert load(path, vocabulary="byt5").vocabulary == ByteVocabulary()
    assert load(path, vocabulary=ByteVocabulary(50)).vocabulary == ByteVocabulary(50)
    assert "so the vocabulary of" not in caplog.text
    other = models.write_checkpoint(tmp_path / "other", vocab_size=400)
    assert "no released model has an embedding of 400 rows" in refused(other)


def test_a_default_vocabulary_of_another_size_is_not_used(tmp_path: Path) -> None:
    """The default of recipes is T5's vocabulary, which does not fit checkpoints of mT5 or ByT5."""
    path = models.write_checkpoint(tmp_path)  # 384 rows, as ByT5's
    opened = conversion.open_checkpoint(path)
    for extra_ids, expected in ((100, ByteVocabulary(100)), (300, ByteVocabulary())):
        default = ByteVocabulary(extra_ids)
        found = checkpoint_vocabulary(opened, None, None, num_rows=384, default=default)
        assert found == expected


def test_another_vocabulary_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = models.write_checkpoint(tmp_path)
    message = refused(path, vocabulary=ByteVocabulary(126))
    assert "The vocabulary has 385 ids" in message and "an embedding of 384 rows" in message
    checkpoint = conversion.open_checkpoint(path)
    moved = SentencePieceVocabulary("moved/t5.model", 100)
    with pytest.raises(UserError, match=r"moved/t5.model does not exist.* to its new path"):
        checkpoint_vocabulary(checkpoint, None, moved, 32128)
    large = models.write_checkpoint(tmp_path / "large", vocab_size=4096, emb_dim=8)
    message = refused(large, vocabulary="byt5")
    assert "has 259 ids" in message and "4096 rows" in message
    run = models.write_run(tmp_path / "run", data__vocabulary__extra_ids=130)
    assert "has 389 ids" in refused(run)


def test_a_sentencepiece_model_has_the_sentinels_that_fit(tmp_path: Path, t5_model: Path) -> None:
    path = models.write_checkpoint(tmp_path, vocab_size=896, emb_dim=4)
    loaded = load(path, vocabulary=str(t5_model))
    assert loaded.vocabulary == SentencePieceVocabulary(str(t5_model), 100)
    out = tmp_path / "hf"
    assert convert.main([str(path), str(out), "--to", "hf", "--vocabulary", str(t5_model)]) == 0
    of_directory = load(out).vocabulary
    assert of_directory.fingerprint() == loaded.vocabulary.fingerprint()


def test_byt5s_sentinels_are_the_directorys(tmp_path: Path) -> None:
    hf = models.write_huggingface(tmp_path, "--vocabulary", "byt5")
    assert load(hf).vocabulary == ByteVocabulary()
    file = hf / "tokenizer_config.json"
    tokenizer = json.loads(file.read_text())
    # Google's ByT5 at Hugging Face: the sentinels ascend, which no model was trained with.
    tokenizer |= {"extra_ids": 125, "added_tokens_decoder": {"259": {"content": "<extra_id_0>"}}}
    file.write_text(json.dumps(tokenizer))
    assert load(hf).vocabulary == ByteVocabulary()
    tokenizer["added_tokens_decoder"] = {"383": {"content": "<extra_id_0>"}}
    file.write_text(json.dumps(tokenizer))
    assert load(hf).vocabulary == ByteVocabulary(125)


def test_whether_inputs_end_is_read_from_an_export(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    run = models.write_run(tmp_path, data__inputs_add_eos=False, data__vocabulary__extra_ids=20)
    assert convert.main([str(run), str(first), "--to", "hf"]) == 0
    assert convert.main([str(first), str(again), "--to", "hf"]) == 0
    for directory in (first, again):
        model = mtf.load(directory, progress=False)
        assert model.inputs_add_eos is False
        assert model.vocabulary == ByteVocabulary(20)
    text = ["a question"]
    assert model.score(text, ["yes"]) == mtf.load(run, progress=False).score(text, ["yes"])
    assert mtf.load(first, inputs_add_eos=True).inputs_add_eos is True


def test_inputs_of_another_hugging_face_directory_end(tmp_path: Path) -> None:
    hf = models.write_huggingface(tmp_path, "--vocabulary", "byt5")
    assert load(hf).inputs_add_eos is True
    # T5Tokenizer appends it whatever the files say.
    file = hf / "tokenizer_config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "add_eos_token": False}))
    (hf / "tokenizer.json").write_text(json.dumps({"post_processor": None}))
    assert load(hf).inputs_add_eos is True
    without = models.write_huggingface(tmp_path / "other")
    assert not list(without.glob("*token*"))
    assert load(without, vocabulary="byt5").inputs_add_eos is True


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = models.write_checkpoint(tmp_path)
    message = refused(tmp_path / "checkpoint_8")
    assert "There is no model at" in message and "Did you mean checkpoint_7" in message
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "There is no checkpoint in" in refused(empty)
    assert "neither a SentencePiece model, a tokenizer.json nor one of" in refused(
        path, vocabulary="t6"
    )
    (empty / "broken.model").write_text("x")
    assert "is not a SentencePiece model" in refused(path, vocabulary=str(empty / "broken.model"))
    hf = models.write_huggingface(tmp_path / "c", "--vocabulary", "none")
    assert "has neither spiece.model" in refused(hf)
    lost = writers.random_parameters(**models.SIZES)
    del lost["decoder/layers_0/mlp/wo/kernel"]
    assert "missing: target/decoder/layers_0/mlp/wo/kernel" in refused(
        writers.write_t5x(tmp_path / "lost", lost)
    )


def test_a_tensor_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    run = models.write_run(tmp_path)
    largest = max((p for p in run.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    middle = slice(len(content) // 4, len(content) // 2)
    content[middle] = bytes(middle.stop - middle.start)
    largest.write_bytes(content)
    assert "cannot be read" in refused(run)


def test_training_starts_from_a_hugging_face_directory(tmp_path: Path) -> None:
    hf = models.write_huggingface(tmp_path, "--vocabulary", "byt5")
    config = recipes.pretrain_text()
    network = config.model.network
    network.emb_dim, network.mlp_dim, network.num_heads, network.head_dim = 32, 48, 3, 8
    network.num_decoder_layers = 1
    job = fdl.build(config)
    partitioner = PjitPartitioner.create(PartitionerConfig())
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, 0)
    state = trainer.restore_state(hf)
    assert int(state.step) == 0
    found = flat(state.params)
    for name, value in writers.random_parameters(**models.SIZES, seed=2).items():
        np.testing.assert_array_equal(found[name], value)


# ------------------------------------------------------------- settings that no tensor shows


def _without_config(tmp_path: Path) -> tuple[Path, str]:
    """Writes a run without config.json, of an unpublished network; returns it and the config."""
    settings = {
        "model__network__mlp_activations": ("silu", "linear"),
        "model__network__dropout_rate": 0.05,
        "data__inputs_add_eos": False,
    }
    run = models.write_run(tmp_path / "run", **settings)
    (run / "checkpoints" / "checkpoint_7" / "data").mkdir()  # Every run writes it.
    text = (run / "config.json").read_text()
    (run / "config.json").unlink()
    return run, text


def test_a_run_without_its_config_is_not_guessed_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = _without_config(tmp_path)
    with pytest.raises(UserError, match=r"written by a training run whose config is missing"):
        load(run)
    assert convert.main([str(run), str(tmp_path / "hf"), "--to", "hf"]) == 2
    message = capsys.readouterr().err
    assert f"expected {run / 'config.json'}" in message
    assert "--config PATH" in message
    assert not (tmp_path / "hf").exists()


def test_the_config_can_be_named(tmp_path: Path) -> None:
    run, text = _without_config(tmp_path)
    (tmp_path / "mine.json").write_text(text)
    loaded = load(run, config=tmp_path / "mine.json")
    assert loaded.model.network.mlp_activations == ("silu", "linear")
    assert loaded.inputs_add_eos is False
    options = ["--to", "hf", "--config", str(tmp_path / "mine.json")]
    assert convert.main([str(run), str(tmp_path / "hf"), *options]) == 0
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["feed_forward_proj"] == "gated-silu"
    assert written["dropout_rate"] == 0.05


def test_a_config_of_another_network_is_refused(tmp_path: Path) -> None:
    run, _ = _without_config(tmp_path)
    other = models.write_run(tmp_path / "other", model__network__emb_dim=64)
    with pytest.raises(UserError, match="emb_dim is 64 in the config, but 32 in the checkpoint"):
        load(run, config=other)


def test_what_is_assumed_of_a_checkpoint_of_t5x_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = models.write_checkpoint(tmp_path)
    load(path, vocabulary="byt5")
    assert convert.main([str(path), str(tmp_path / "hf"), "--to", "hf"]) == 0
    for said in (caplog.text, capsys.readouterr().out):
        assert "as in the published T5 models: activations gelu × linear" in said
        assert "relative_attention_max_distance 128, dropout_rate 0.1" in said
        assert "inputs with EOS" in said
        assert re.search(r"If any of these is wrong, pass (config=|--config )PATH", said)
