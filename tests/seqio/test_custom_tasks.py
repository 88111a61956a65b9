"""SeqIO tasks of the user's own: live, in memory, cached; their metrics; and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("seqio")

import seqio

from mtf.base.errors import UserError
from mtf.cli.cache import main as cache_main
from mtf.data import ByteVocabulary, TaskMixtureConfig, loaders
from mtf.evaluation.infer_eval import compare, find_held_out
from mtf.evaluation.settings import InferEvalConfig
from mtf.jobs import Evaluate
from tests.inference import models

BYTES = ByteVocabulary()
MODULE = """
import functools
import numpy as np
import seqio
import tensorflow as tf


def numbers(split, shuffle_files=False, seed=None):
    start, stop = {"train": (0, 40), "validation": (40, 46)}[split]
    return tf.data.Dataset.range(start, stop).map(lambda n: {"n": tf.strings.as_string(n)})


def to_text(dataset):
    return dataset.map(
        lambda row: {
            "inputs": tf.strings.join(["double ", row["n"]]),
            "targets": tf.strings.as_string(2 * tf.strings.to_number(row["n"], tf.int32)),
            "row": row["n"],
        }
    )


def last_digit(text, example=None, is_target=False):
    return (int(example["row"]) if is_target else -1, text[-1:])


def digits(targets, predictions):
    assert [row for row, _ in targets] == list(range(40, 40 + len(targets)))
    same = [t[1] == p[1] for t, p in zip(targets, predictions)]
    return {"last_digit": 100 * np.mean(same), "rows": len(targets)}


made = []


def counted(split, shuffle_files=False, seed=None):
    def records():
        for n in range({"train": 40, "validation": 6}[split]):
            made.append(n)
            yield str(n)

    return tf.data.Dataset.from_generator(records, tf.string, ()).map(lambda n: {"n": n})


def add(name, *steps, source=numbers, **fields):
    feature = functools.partial(seqio.Feature, seqio.SentencePieceVocabulary("/not/there", 100))
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(source, splits=("train", "validation")),
        preprocessors=[to_text, seqio.preprocessors.tokenize, *steps],
        output_features={"inputs": feature(add_eos=False), "targets": feature()},
        **fields,
    )


cached, eos = seqio.CacheDatasetPlaceholder(), seqio.preprocessors.append_eos_after_trim
add("doubled", cached, eos, postprocess_fn=last_digit, metric_fns=[digits])
add("plain", eos)
add("counted", cached, eos, source=counted)


def halve(dataset, sequence_length):
    return dataset


add("late", cached, halve, eos)


def best(targets, scores):
    return {"best": max(scores)}


def in_words(targets, predictions):
    return {"words": seqio.metrics.Text("some"), "one": seqio.metrics.Scalar(1)}


add("scored", eos, metric_fns=[best])
add("in_words", eos, metric_fns=[in_words, best])
seqio.MixtureRegistry.add("doubled_mixture", [("doubled", 3.0), ("plain", 1.0)])
"""


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_seqio.py").write_text(MODULE)
    registries = (seqio.TaskRegistry, seqio.MixtureRegistry)
    before = [set(registry.names()) for registry in registries]
    yield
    sys.modules.pop("own_seqio", None)
    for registry, names in zip(registries, before, strict=True):
        for name in set(registry.names()) - names:
            registry.remove(name)


def settings(name: str = "doubled_mixture", **fields: Any) -> TaskMixtureConfig:
    values: dict[str, Any] = {
        "vocabulary": BYTES,
        "task_feature_lengths": {"inputs": 16, "targets": 6},
        "module": "own_seqio",
        "loader": "seqio",
        "pack": False,
    }
    return TaskMixtureConfig(mixture_or_task_name=name, **{**values, **fields})


def texts(data: TaskMixtureConfig, batches: int) -> list[tuple[str, str]]:
    iterator = loaders.make_train_iterator(data, batch_size=8)
    found = []
    for _ in range(batches):
        batch = next(iterator)
        for inputs, targets in zip(
            batch["encoder_input_tokens"], batch["decoder_target_tokens"], strict=True
        ):
            kept = inputs[inputs != 0]
            assert kept[-1] != BYTES.eos_id  # the feature has no EOS
            assert targets[targets != 0][-1] == BYTES.eos_id
            found.append((BYTES.decode(kept.tolist()), BYTES.decode(targets.tolist())))
    return found


def write_cache(name: str) -> int:
    options = ["--module", "own_seqio", "--vocabulary", "byt5", "--output", "cache"]
    return cache_main([name, *options, "--num-workers", "1"])


def test_live_memory_and_cache_have_the_same_examples() -> None:
    assert write_cache("doubled") == 0
    expected = sorted((f"double {n}", str(2 * n)) for n in range(40))
    for fields in (
        {"shuffle": False},
        {"loader": "memory"},
        {"loader": "cache", "cache_dir": "cache"},
    ):
        assert sorted(texts(settings("doubled", **fields), 5)) == expected, fields
        data = settings("doubled", **fields)
        examples = loaders.sample_examples(data, 100)
        found = sorted(BYTES.decode(example.inputs.tolist()) for example in examples)
        assert found == [f"double {n}" for n in range(40, 46)]


def test_seqio_makes_each_example_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert write_cache("counted") == 0
    made = sys.modules["own_seqio"].made
    assert sorted(made) == sorted([*range(40), *range(6)])
    made.clear()
    data = settings("counted", loader="memory", eval_split=None)
    in_memory = sorted(texts(data, 5))
    assert sorted(made) == list(range(40))
    data = settings("counted", loader="cache", cache_dir="cache")
    assert sorted(texts(data, 5)) == in_memory


@pytest.mark.parametrize("fields", [{}, {"loader": "memory"}])
def test_metric_fns_see_postprocessed_targets_of_their_examples(fields: dict[str, Any]) -> None:
    (held_out,) = find_held_out(settings("doubled", **fields), InferEvalConfig(num_examples=5))
    assert held_out.scores == ("last_digit", "rows")
    assert [BYTES.decode(e.inputs.tolist()) for e in held_out.examples] == [
        f"double {n}" for n in range(40, 45)
    ]
    # Targets are 80, 82, 84, 86, 88.
    found = compare(held_out, [], ["0", "12", "5", "", "8"])
    assert found == {"last_digit": 60.0, "rows": 5}
    (plain,) = find_held_out(settings("plain", **fields), InferEvalConfig(num_examples=5))
    assert plain.scores == ("accuracy",)


def test_metrics_that_are_no_numbers_of_predicted_text() -> None:
    with pytest.raises(UserError, match=r"scored cannot be evaluated: its metric_fns \(best\)"):
        find_held_out(settings("scored"), InferEvalConfig())
    (held_out,) = find_held_out(settings("in_words"), InferEvalConfig())
    assert compare(held_out, [], [""] * 6) == {"one": 1.0}


def test_what_cannot_be_cached(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_cache("late") == 2
    message = capsys.readouterr().err
    assert "late cannot be written to a token cache, because halve must run when" in message
    assert "train with data.loader='seqio'" in message
    assert len(texts(settings("late"), 1)) == 8


def test_a_name_that_the_module_does_not_register() -> None:
    with pytest.raises(UserError, match=r"SeqIO\. Did you mean doubled_mixture"):
        loaders.make_train_iterator(settings("doubled_mixtur"), batch_size=8)


@pytest.mark.parametrize("fields", [{}, {"cache_dir": "cache"}])
def test_a_checkpoint_is_evaluated_with_metric_fns(fields: dict[str, Any], tmp_path: Path) -> None:
    if fields:
        assert write_cache("doubled_mixture") == 0
    checkpoint = models.write_checkpoint(tmp_path / "model")
    data = settings(**{"loader": "cache", **fields})
    found = Evaluate(str(checkpoint), data, batch_size=4, output_dir="out").run()
    doubled, plain = found.tasks
    assert doubled.metrics["rows"] == doubled.num_examples == plain.num_examples == 6
    file = tmp_path / "out" / "predictions" / "doubled-predict.jsonl-00000-of-00001"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    targets = [line["inputs"]["targets_pretokenized"] for line in lines]
    assert targets == [str(2 * n) for n in range(40, 46)]
    same = [t[-1:] == x["prediction"].strip()[-1:] for t, x in zip(targets, lines, strict=True)]
    assert doubled.metrics["last_digit"] == 100 * np.mean(same)
    assert (doubled.dataset, plain.dataset) == ("doubled", "plain")
    assert set(plain.metrics) == {"accuracy"}
