"""T5's own tasks, as the package `t5` registers them: GLUE, SuperGLUE, SQuAD, CNN/DailyMail, WMT.

Their datasets are in TFDS's layout on disk, with records of our own instead of the originals',
which TFDS would download. What mtf computes is compared with SeqIO's own evaluator.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("seqio")
pytest.importorskip("t5")

import seqio

from mtf.base.errors import UserError
from mtf.cli.cache import main as cache_main
from mtf.cli.run import main as run_main
from mtf.data import SentencePieceVocabulary, TaskMixtureConfig, loaders
from mtf.evaluation.infer_eval import InferenceEvaluator, compare, find_held_out
from mtf.evaluation.settings import InferEvalConfig
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.predictor import Generation, Predictor
from mtf.jobs import Evaluate
from tests import made_up, small
from tests.inference import models
from tests.seqio import t5_records
from tests.tasks import test_page as page

T5_MODEL = str(made_up.t5_model())
VOCABULARY = SentencePieceVocabulary(T5_MODEL)
LENGTHS = {"inputs": 256, "targets": 64}

# A mixture of all tasks below, as `t5_tasks`.
EVALUATED = {
    **{f"glue_{name}_v002": {"accuracy"} for name in ("sst2", "qnli", "rte", "wnli")},
    **{f"glue_mnli_{name}_v002": {"accuracy"} for name in ("matched", "mismatched")},
    **{f"glue_{name}_v002": {"f1", "accuracy"} for name in ("mrpc", "qqp")},
    "glue_cola_v002": {"matthews_corrcoef"},
    "glue_stsb_v002": {"pearson_corrcoef", "spearman_corrcoef"},
    "glue_wnli_v002_simple_eval": {"accuracy"},
    **{f"super_glue_{name}_v102": {"accuracy"} for name in ("boolq", "copa", "rte", "wic")},
    "super_glue_cb_v102": {"mean_3class_f1", "accuracy"},
    "super_glue_multirc_v102": {"f1", "exact_match"},
    "super_glue_record_v102": {"em", "f1"},
    "super_glue_wsc_v102_simple_eval": {"accuracy"},
    "squad_v010": {"em", "f1"},
    "squad_v010_allanswers": {"em", "f1"},
    "squad_v010_allanswers_span": {"em", "f1"},
    "squad_v010_context_free": {"em", "f1"},
    "cnn_dailymail_v002": {"rouge1", "rouge2", "rougeLsum"},
    **{f"wmt14_{pair}_v003": {"bleu"} for pair in ("ende", "enfr")},
    "wmt15_enfr_v003": {"bleu"},
    "wmt16_enro_v003": {"bleu"},
    "wmt19_ende_v003": {"bleu"},
    "wmt_t2t_ende_v003": {"bleu"},
}
# Tasks without a split `validation`, and those without a split `train`.
ONLY_TRAINED = ("glue_mnli_v002", "dpr_v001_simple", "super_glue_wsc_v102_simple_train")
ONLY_TESTED = ("glue_ax_v002", "super_glue_axb_v102", "super_glue_axg_v102")
ONLY_EVALUATED = [
    *("glue_mnli_matched_v002", "glue_mnli_mismatched_v002", "glue_wnli_v002_simple_eval"),
    "super_glue_wsc_v102_simple_eval",
]


@pytest.fixture(scope="module", autouse=True)
def tfds_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("tfds")
    t5_records.write_datasets(root)
    rates = dict.fromkeys([*EVALUATED, *ONLY_TRAINED], 1.0)
    rates |= dict.fromkeys([*ONLY_EVALUATED, *ONLY_TESTED], 0.0)
    with pytest.MonkeyPatch.context() as patch:
        # Not imported above: it registers names that other tests register.
        import t5.data.mixtures  # noqa: F401

        patch.setenv("TFDS_DATA_DIR", str(root))
        seqio.set_tfds_data_dir_override(str(root))
        # SeqIO's evaluator tokenizes with T5's vocabulary, which is in a bucket.
        for name in seqio.TaskRegistry.names():
            for feature in seqio.TaskRegistry.get(name).output_features.values():
                if isinstance(feature.vocabulary, seqio.SentencePieceVocabulary):
                    patch.setattr(feature.vocabulary, "_sentencepiece_model_file", T5_MODEL)
        seqio.MixtureRegistry.add("t5_tasks", list(rates.items()))
        yield root
        seqio.MixtureRegistry.remove("t5_tasks")
        seqio.set_tfds_data_dir_override(None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A token cache of all tasks."""
    folder = str(tmp_path_factory.mktemp("cache") / "cache")
    assert write_cache("t5_tasks", folder) == 0
    return folder


def write_cache(name: str, folder: str) -> int:
    options = ["--module", "t5.data.mixtures", "--vocabulary", T5_MODEL, "--output", folder]
    return cache_main([name, *options, "--num-workers", "1"])


def settings(name: str, **fields: Any) -> TaskMixtureConfig:
    values = {"task_feature_lengths": LENGTHS, "pack": False, "module": "t5.data.mixtures"}
    return TaskMixtureConfig(
        mixture_or_task_name=name, vocabulary=VOCABULARY, **{**values, **fields}
    )


class Reference:
    """SeqIO's evaluator, and a model that is right, wrong, silent and verbose in turn."""

    def __init__(self, name: str):
        self.evaluator = seqio.Evaluator(
            name,
            seqio.EncDecFeatureConverter(pack=False),
            "validation",
            sequence_length={**LENGTHS, "targets": 512},
        )
        self.tasks = {
            name: list(dataset.as_numpy_iterator())
            for name, dataset in self.evaluator.cached_task_datasets.items()
        }
        self._answers: dict[tuple[int, ...], str] = {}
        for records in self.tasks.values():
            targets = [VOCABULARY.decode(each["targets"].tolist()) for each in records]
            for n, record in enumerate(records):
                text = (targets[n], targets[(n + 1) % len(records)], "", f"{targets[n]} maybe")
                key = self._key(record["inputs"])
                # SQuAD's tasks have the same inputs; half of the answers are for the last of them.
                if key not in self._answers or n % 2 == 0:
                    self._answers[key] = text[n % 4 if n > 4 else 0]

    def answer(self, inputs: Any) -> list[int]:
        """Returns the tokens that the model generates."""
        return VOCABULARY.encode(self._answers[self._key(inputs)])

    @staticmethod
    def _key(inputs: Any) -> tuple[int, ...]:
        return tuple(int(i) for i in inputs if i not in (0, VOCABULARY.eos_id))

    def metrics(self) -> dict[str, dict[str, float]]:
        """Returns task → score → value."""

        def predict(dataset: Any) -> list[tuple[int, list[int]]]:
            found = []
            for n, example in dataset.as_numpy_iterator():
                ids = [*self.answer(example["encoder_input_tokens"]), VOCABULARY.eos_id]
                found.append((n, ids + [0] * (600 - len(ids))))
            return found

        found, _ = self.evaluator.evaluate(compute_metrics=True, predict_fn=predict)
        return {
            task: {name: getattr(value, "value", value) for name, value in scores.items()}
            for task, scores in found.result().items()
        }


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference("t5_tasks")


@pytest.fixture
def same_model(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes mtf generate what the model of the reference does."""

    def generate(self: Predictor, inputs: Any, *_: Any, **__: Any) -> Iterator[list[Generation]]:
        for ids in inputs:
            yield [Generation(reference.answer(ids), 0.0)]

    monkeypatch.setattr(Predictor, "generate", generate)


def texts(batch: dict[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    for pair in zip(batch["encoder_input_tokens"], batch["decoder_target_tokens"], strict=True):
        yield tuple(VOCABULARY.decode(ids[ids != 0].tolist()) for ids in pair)  # type: ignore[misc]


# The first example of `train`, or of `validation`; Raffel et al. (2020), appendix D.
A, B = (t5_records.sentence(n) for n in (0, 3))
FIRST = {
    "glue_stsb_v002": (f"stsb sentence1: {A} sentence2: {B}", "0.0"),
    "super_glue_record_v102": (
        "record query: The @placeholder sleeps in the garden entities: cat, old dog, grey owl, "
        f"young fox, brown bear passage: {A} {t5_records.sentence(1)}",
        "cat",
    ),
    "super_glue_wsc_v102_simple_eval": (
        "wsc: Mark told Pete many lies about himself , and *he* was hurt .",
        "Mark",
    ),
    "wmt_t2t_ende_v003": (
        "translate English to German: The cat sleeps in the garden (en 0)",
        "The cat sleeps in the garden (de 0)",
    ),
}


def test_all_tasks_train_live_and_from_a_cache(cache: str) -> None:
    cached = {"loader": "cache", "cache_dir": cache}
    examples = loaders.sample_examples(settings("t5_tasks", **cached, eval_split="train"), 10_000)
    every = {(VOCABULARY.decode(e.inputs), VOCABULARY.decode(e.targets)) for e in examples}
    for name, pair in FIRST.items():
        split = "validation" if name in ONLY_EVALUATED else "train"
        data = settings(name, **cached, eval_split=split, shuffle=False)
        (first,) = loaders.sample_examples(data, 1)
        assert (VOCABULARY.decode(first.inputs), VOCABULARY.decode(first.targets)) == pair
    for fields in ({"loader": "seqio"}, cached):
        data = settings("t5_tasks", **fields)
        batches = itertools.islice(loaders.make_train_iterator(data, batch_size=32), 20)
        found = {pair for batch in batches for pair in texts(batch)}
        assert found <= every
        assert {inputs.split()[0] for inputs, _ in found} == {i.split()[0] for i, _ in every}


@pytest.mark.usefixtures("same_model")
def test_metrics_during_training_are_those_of_seqio(reference: Reference) -> None:
    data = settings("t5_tasks", loader="seqio")
    held_out = find_held_out(data, InferEvalConfig())
    assert {each.name: set(each.scores) for each in held_out} == EVALUATED
    expected = reference.metrics()
    predictor = Predictor.__new__(Predictor)
    evaluator = InferenceEvaluator(
        held_out, lambda _: predictor, VOCABULARY, DecodingConfig(), period=1
    )
    assert_same(evaluator.evaluate({}), expected)


def assert_same(found: dict[str, dict[str, float]], expected: dict[str, dict[str, float]]) -> None:
    assert set(found) == set(expected)
    for name, scores in expected.items():
        # T5's ROUGE is the median of a random sample.
        tolerance = 3.0 if name.startswith("cnn_dailymail") else 1e-6
        assert found[name] == pytest.approx(scores, abs=tolerance), name
        # The model is neither always right nor always wrong; squad_v010 compares letters.
        if name != "squad_v010":
            assert all(0 < abs(value) < 100 for value in scores.values()), (name, scores)


def evaluate(data: TaskMixtureConfig, folder: Path) -> Any:
    checkpoint = folder / "model"
    if not checkpoint.exists():
        models.write_checkpoint(checkpoint, vocab_size=896)
    return Evaluate(str(checkpoint), data, output_dir=str(folder / "out"), batch_size=8).run()


@pytest.mark.usefixtures("same_model")
def test_a_checkpoint_is_evaluated_as_by_seqio(
    cache: str, reference: Reference, tmp_path: Path
) -> None:
    lengths = {**LENGTHS, "targets": 512}
    data = settings("t5_tasks", cache_dir=cache, task_feature_lengths=lengths)
    with pytest.raises(UserError, match="6 of the 36 tasks of t5_tasks are missing") as refused:
        evaluate(data, tmp_path)
    assert "no split 'validation' for glue_mnli_v002; available splits: train" in str(refused.value)
    found = evaluate(dataclasses.replace(data, allow_missing_tasks=True), tmp_path)
    results = {task.task: task for task in found.tasks}
    assert {name for name, task in results.items() if task.absent} == {*ONLY_TRAINED, *ONLY_TESTED}
    metrics = {name: task.metrics for name, task in results.items() if not task.absent}
    expected = reference.metrics()
    assert_same(metrics, expected)
    # Live, SuperGLUE as T5 mixes it.
    shutil.rmtree(tmp_path / "out")
    data = settings(
        "super_glue_v102_proportional", task_feature_lengths=lengths, allow_missing_tasks=True
    )
    found = evaluate(data, tmp_path)
    assert_same(
        {task.task: task.metrics for task in found.tasks if not task.absent},
        {name: scores for name, scores in expected.items() if name.startswith("super_glue")},
    )


# The weights of t5.data.glue_utils, which are the numbers of training examples.
SUPER_GLUE = {
    **{"boolq": 9_427, "cb": 250, "copa": 400, "multirc": 27_243, "record": 138_854},
    **{"rte": 2_490, "wic": 5_428, "wsc": 259},
}


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        (
            "super_glue_v102_proportional",
            {f"super_glue_{k}_v102": v for k, v in SUPER_GLUE.items()} | {"dpr_v001_simple": 1_322},
        ),
        # The rates are functions of T5's, here of 12 records each.
        (
            "large_supervised_proportional",
            dict.fromkeys(("wmt_t2t_ende_v003", "wmt15_enfr_v003", "cnn_dailymail_v002"), 12),
        ),
    ],
)
def test_mixtures_train_with_t5s_rates(name: str, rates: dict[str, float], cache: str) -> None:
    assert write_cache(name, cache) == 0
    live, cached = (
        settings(name, **fields)
        for fields in ({"loader": "seqio"}, {"loader": "cache", "cache_dir": cache})
    )
    tasks = loaders.provenance(cached)["tasks"]
    wsc = "super_glue_wsc_v102"
    assert {k.replace(f"{wsc}_simple_train", wsc): t["rate"] for k, t in tasks.items()} == rates
    for data in (live, cached):
        assert loaders.provenance(data)["missing_tasks"] == {}
        batch = next(loaders.make_train_iterator(data, batch_size=8))
        assert len(list(texts(batch))) == 8
        assert list(loaders.make_evaluations(data, batch_size=8)) == [name]


def test_tasks_with_sentinels_train_and_are_evaluated_live() -> None:
    name = "super_glue_boolq_v102_1_sentinel"
    data = settings(name, loader="seqio")
    batch = next(loaders.make_train_iterator(data, batch_size=4))
    for inputs, targets in texts(batch):
        assert inputs.endswith("<extra_id_0>")
        assert targets in ("<extra_id_0> False", "<extra_id_0> True")
    (boolq,) = find_held_out(data, InferEvalConfig())
    targets = [VOCABULARY.decode(example.targets) for example in boolq.examples]
    right = targets.count("<extra_id_0> True")
    assert compare(boolq, [], ["<extra_id_0> True"] * 9) == {"accuracy": 100 * right / 9}
    assert compare(boolq, [], ["True"] * 9) == {"accuracy": 100 * right / 9}


def test_datasets_that_tfds_does_not_have(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    features = seqio.TaskRegistry.get("glue_cola_v002").output_features
    names = ["absent_cola", "absent_sst2"]
    for name in names:
        source = seqio.TfdsDataSource(f"{name.replace('absent_', 'glue/')}:2.0.0")
        seqio.TaskRegistry.add(name, source, preprocessors=[], output_features=dict(features))
    seqio.MixtureRegistry.add("absent", names, default_rate=1.0)
    missing = r"TFDS has no data for glue/cola:2\.0\.0 .* Set TFDS_DATA_DIR"
    try:
        assert write_cache("absent", str(tmp_path / "cache")) == 2
        message = capsys.readouterr().err
        assert "2 of the 2 tasks of absent are missing" in message and re.search(missing, message)
        assert not (tmp_path / "cache").exists()
        for loader in ("seqio", "memory"):
            with pytest.raises(UserError, match=missing):
                loaders.make_train_iterator(settings("absent_cola", loader=loader), batch_size=8)
            with pytest.raises(UserError, match=rf"2 of the 2 tasks of absent(.*\n)+.*{missing}"):
                loaders.make_train_iterator(settings("absent", loader=loader), batch_size=8)
    finally:
        seqio.MixtureRegistry.remove("absent")
        for name in names:
            seqio.TaskRegistry.remove(name)


def test_the_pages_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of docs/tasks.md as they stand; only sizes and numbers are smaller."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(T5_MODEL, "t5.spiece.model")
    network = {k: v for k, v in small.SETTINGS.items() if k.startswith("model.network.")}
    del network["model.network.vocab_size"]
    training = {
        **network,
        **{"train_steps": 2, "batch_size": 4, "evaluator.period": 2, "evaluator.num_examples": 2},
        **{"trainer.stats_period": 1, "trainer.eval_period": 2, "trainer.eval_steps": 1},
        **{"checkpoint.restore": None, "data.vocabulary.path": "t5.spiece.model"},
        "data.task_feature_lengths.targets": 16,
    }
    found = [command for command in page.commands("T5's tasks") if command[1] == "-m"]
    assert [command[2] for command in found] == ["mtf.cache", *["mtf.run"] * 4]
    for _, _, module, *arguments in found:
        if module == "mtf.cache":
            assert cache_main([*arguments, "--num-workers", "1"]) == 0
            continue
        sizes = {"data.task_feature_lengths.targets": 16}
        sizes = training if "finetune" in arguments[0] else sizes
        assert run_main([*arguments, *(f"{name}={value}" for name, value in sizes.items())]) == 0
    assert (tmp_path / "wmt" / "config.json").is_file()
    reports = [json.loads(file.read_text()) for file in Path("runs").glob("*/results.json")]
    glue, squad = sorted(reports, key=lambda report: -report["num_tasks"])
    assert len(glue["tasks"]) == 11 and glue["num_missing_tasks"] == 2
    assert glue["tasks"]["glue_mrpc_v002"]["num_examples"] == 9
    assert squad["tasks"]["squad_v010_allanswers"]["num_examples"] == 9
