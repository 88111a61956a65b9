"""Tasks and mixtures of mtf that are registered with SeqIO, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.data.sources.datasets import open_split
from mtf.data.tasks.mixtures import list_mixtures
from mtf.data.tasks.mixtures import mixture as our_mixture
from mtf.data.tasks.prompts.templates import load_templates
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary
from mtf.evaluation import seqio_registry
from tests.data.helpers import write_parquet
from tests.evaluation import custom_tasks  # noqa: F401  # registers custom_mixture
from tests.seqio.helpers import BYTES, TRANSLATION, write_mirror

seqio = pytest.importorskip("seqio")

NUM_ROWS = 20


@pytest.fixture(autouse=True)
def empty_registries() -> Iterator[None]:
    yield
    seqio.TaskRegistry.reset()
    seqio.MixtureRegistry.reset()
    seqio_registry._REGISTERED.clear()


def test_only_what_is_named_is_registered_and_twice_is_once(tmp_path: Path) -> None:
    mirror = write_mirror(tmp_path)
    for _ in range(2):
        seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=mirror)
        assert set(seqio.TaskRegistry.names()) == {TRANSLATION}
        assert not seqio.MixtureRegistry.names()


def test_a_task_ends_targets_but_not_inputs_and_keeps_the_text(tmp_path: Path) -> None:
    seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=write_mirror(tmp_path))
    task = seqio.get_mixture_or_task(TRANSLATION)
    assert set(task.splits) == {"train", "validation"}
    assert task.num_input_examples("train") == 60
    dataset = task.get_dataset({"inputs": 64, "targets": 32}, split="train", shuffle=False)
    example = list(dataset.as_numpy_iterator())[8]
    assert example["inputs_pretokenized"] == b"Translate from en to ro: 8: a"
    assert bytes((example["inputs"] - 3).tolist()) == b"Translate from en to ro: 8: a"
    assert bytes((example["targets"][:-1] - 3).tolist()) == b"8! bbb"
    assert example["targets"][-1] == 1


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    mirror = write_mirror(tmp_path)
    seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=mirror)
    with pytest.raises(UserError, match=r"already registered.*byte\+0.*byte\+100"):
        seqio_registry.register(TRANSLATION, vocabulary=ByteVocabulary(100), data_dir=mirror)

    seqio_registry._REGISTERED.clear()
    with pytest.raises(UserError, match="is already registered with SeqIO by another library"):
        seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=mirror)


def test_without_data_the_missing_file_is_named(tmp_path: Path) -> None:
    seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=tmp_path)
    with pytest.raises(UserError, match=r"opus100/en-ro/train\.parquet"):
        _ = seqio.get_mixture_or_task(TRANSLATION).splits


def test_a_missing_training_set_is_not_passed_over(tmp_path: Path) -> None:
    mirror = write_mirror(tmp_path)
    (mirror / "opus100" / "en-ro" / "train.parquet").unlink()
    seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=mirror)
    task = seqio.get_mixture_or_task(TRANSLATION)
    assert set(task.splits) == {"train", "validation"}
    assert len(list(task.get_dataset(None, split="validation"))) == 7
    with pytest.raises(UserError, match=r"opus100/en-ro/train\.parquet"):
        seqio.Mixture("mixture", [(task, 1)]).get_dataset(None, split="train")


def test_story_cloze_is_left_out_of_evaluation_with_its_form(
    prompts: Path, datasets_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seqio_registry.register(
        "t0_eval_score_eval", vocabulary=BYTES, data_dir=datasets_dir, templates=prompts
    )
    names = [task.name for task in seqio.get_mixture_or_task("t0_eval_score_eval").tasks]
    assert len(names) == 116 - 5 and not any("story_cloze" in name for name in names)
    assert "https://cs.rochester.edu/nlp/rocstories" in capsys.readouterr().err


def test_rates_are_those_of_the_definition_or_the_number_of_examples(
    prompts: Path, datasets_dir: Path
) -> None:
    names = ("t0++_train", "mt5_d4_gpt_sglue_train", "t0_eval_score_eval")
    for name in names:
        seqio_registry.register(name, vocabulary=BYTES, data_dir=datasets_dir, templates=prompts)
    train = seqio.get_mixture_or_task("t0++_train")
    assert len(train.tasks) == 464
    assert sum(train.get_rate(task) for task in train.tasks) == 23_118_591
    evaluation = seqio.get_mixture_or_task("t0_eval_score_eval")
    [copa] = [task for task in evaluation.tasks if "copa_best_option" in task.name]
    assert evaluation.get_rate(copa) == 60
    # T0's tasks have other names with mT5's vocabulary.
    multilingual = {task.name for task in seqio.get_mixture_or_task(names[1]).tasks}
    assert multilingual == {f"mt5_{task.name}" for task in train.tasks}


def test_ranked_tasks_have_t0s_features(prompts: Path, datasets_dir: Path) -> None:
    name = "super_glue_copa_best_option_score_eval"
    seqio_registry.register(name, vocabulary=BYTES, data_dir=datasets_dir, templates=prompts)
    task = seqio.get_mixture_or_task(name)
    lengths = {"inputs": 256, "targets": 64}
    dataset = task.get_dataset(lengths, split="validation", shuffle=False)
    examples = list(dataset.as_numpy_iterator())
    assert len(examples) == 120
    assert [example["idx"].tolist() for example in examples[:3]] == [[0, 0], [0, 1], [1, 0]]
    correct = np.array([example["is_correct"] for example in examples])
    assert (correct[::2] != correct[1::2]).all()
    assert {float(example["weight"]) for example in examples} == {1.0}
    # The number of the example and of the choice comes through the feature converter.
    spec = seqio.FeatureConverter.FeatureSpec(dtype=dataset.element_spec["idx"].dtype)
    converter = seqio.EncDecFeatureConverter(pack=False, passthrough_features={"idx": spec})
    batch = next(converter(dataset, {**lengths, "idx": 2}).batch(4).as_numpy_iterator())
    assert batch["idx"].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_text_and_tokens_are_our_own_for_all_of_t0_that_there_is_data_for(
    prompts: Path, datasets_dir: Path, t5_model: Path
) -> None:
    templates = load_templates(prompts)
    vocabulary = SentencePieceVocabulary(str(t5_model))
    tasks = {}
    for name in [name for name in list_mixtures() if name.startswith("t0") and "pl" not in name]:
        seqio_registry.register(
            name, vocabulary=vocabulary, data_dir=datasets_dir, templates=templates
        )
        registered = {task.name for task in seqio.get_mixture_or_task(name).tasks}
        for task, _ in our_mixture(name, templates).tasks:
            path = datasets_dir / task.dataset / (task.subset or "") / "validation.parquet"
            if path.is_file():
                assert task.name in registered
                tasks[task.name] = task
    kinds = {(task.dataset, task.subset, task.kind): task.name for task in tasks.values()}
    assert len(tasks) > 90 and len(kinds) >= 10
    for task in tasks.values():
        rows = open_split(task.dataset, task.subset, "validation", data_dir=datasets_dir)
        ours = list(task.examples(rows.rows(0, NUM_ROWS), "validation"))
        theirs = seqio.TaskRegistry.get(task.name)
        texts = theirs.source.get_dataset("validation", shuffle=False).take(len(ours))
        for our, text in zip(ours, texts.as_numpy_iterator(), strict=True):
            assert text["inputs"].decode() == our["inputs"]
            assert text["targets"].decode() == our["targets"]
        if task.name not in kinds.values():
            continue
        tokens = theirs.get_dataset(None, split="validation", shuffle=False).take(len(ours))
        for our, example in zip(ours, tokens.as_numpy_iterator(), strict=True):
            np.testing.assert_array_equal(example["inputs"], vocabulary.encode(our["inputs"]))
            targets = [*vocabulary.encode(our["targets"]), vocabulary.eos_id]
            np.testing.assert_array_equal(example["targets"], targets)


LENGTHS = {"inputs": 64, "targets": 16}
COLOURS = ["red", "blue", "green"]
# The rows that custom_tasks leaves out are those whose number ends in 0.
NUMBERS = [n for n in range(12) if n % 10]


def sights(folder: Path) -> Path:
    """A mirror in which row n has the color n % 3."""
    rows = [{"n": n, "colour": COLOURS[n % 3], "animal": "cat"} for n in range(12)]
    write_parquet(folder / "sights" / "validation.parquet", rows)
    return folder


def evaluate(
    name: str,
    predict: Callable[[str], str] | None = None,
    score: Callable[[np.ndarray], float] | None = None,
    lengths: dict[str, int] = LENGTHS,
) -> dict[str, dict[str, float]]:
    """Task → metrics of SeqIO's evaluator, for a model of inputs → text, targets → score."""
    evaluator = seqio.Evaluator(
        name, seqio.EncDecFeatureConverter(pack=False), "validation", sequence_length=lengths
    )

    def predict_fn(dataset: Any) -> list[tuple[int, list[int]]]:
        assert predict is not None
        found = []
        for index, example in dataset.as_numpy_iterator():
            text = BYTES.decode(example["encoder_input_tokens"].tolist())
            ids = [*BYTES.encode(predict(text)), BYTES.eos_id]
            found.append((index, ids + [0] * (64 - len(ids))))
        return found

    def score_fn(dataset: Any) -> list[tuple[int, float]]:
        assert score is not None
        batches = dataset.as_numpy_iterator()
        return [(i, score(each["decoder_target_tokens"])) for i, each in batches]

    metrics, _ = evaluator.evaluate(compute_metrics=True, predict_fn=predict_fn, score_fn=score_fn)
    return {task: dict(values) for task, values in metrics.result().items()}


def test_generated_classes(tmp_path: Path) -> None:
    # Row 1 is right, row 2 no class, and all others are called red.
    answers = {1: " blue ", 2: "gree"}
    seqio_registry.register("custom_colour", vocabulary=BYTES, data_dir=sights(tmp_path))
    found = evaluate("custom_colour", lambda text: answers.get(int(text.split()[0]), "red"))
    # Red are rows 3, 6 and 9, blue 1, 4 and 7, green 2, 5, 8 and 11.
    num_red = sum(n % 3 == 0 for n in NUMBERS)
    num_blue = sum(n % 3 == 1 for n in NUMBERS)
    red = 2 * num_red / (num_red + len(NUMBERS) - 2)
    blue = 2 * 1 / (num_blue + 1)
    assert found == {
        "custom_colour": {
            "accuracy": pytest.approx(100 * (num_red + 1) / len(NUMBERS)),
            "mean_3class_f1": pytest.approx(100 * (red + blue + 0) / 3),
        }
    }


def test_ranked_choices(tmp_path: Path) -> None:
    seqio_registry.register("custom_colour_score_eval", vocabulary=BYTES, data_dir=sights(tmp_path))
    # "red" has four tokens with EOS, "blue" five, "green" six; per token, green is the best.
    scores = {"red": -4.0, "blue": -4.5, "green": -4.6}
    found = evaluate(
        "custom_colour_score_eval", score=lambda ids: scores[BYTES.decode(ids.tolist())]
    )
    shares = [100 * sum(n % 3 == each for n in NUMBERS) / len(NUMBERS) for each in range(3)]
    assert found == {
        "custom_colour_score_eval": {
            "accuracy": pytest.approx(shares[0]),
            "length_normalized_accuracy": pytest.approx(shares[2]),
            "majority": pytest.approx(max(shares)),
            # The F1 of a class that is always predicted: precision is its share, recall 1.
            "mean_f1": pytest.approx(100 * 2 * shares[0] / (shares[0] + 100) / 3),
        }
    }


def test_translations_have_the_bleu_of_sacrebleu(tmp_path: Path) -> None:
    from sacrebleu.metrics.bleu import BLEU

    seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=write_mirror(tmp_path))
    found = evaluate(TRANSLATION, lambda text: f" {text.split(': ')[1]}! bb bbb ")
    predictions = [f"{i}! bb bbb" for i in range(7)]
    targets = [f"{i}! {'b' * (i % 5)}".strip() for i in range(7)]
    expected = BLEU(tokenize="intl").corpus_score(predictions, [targets]).score
    assert 0 < expected < 100
    assert found == {TRANSLATION: {"bleu": pytest.approx(expected)}}
