"""The metrics that SeqIO's evaluator reports of registered tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.evaluation import seqio_registry
from tests.evaluation import custom_tasks  # noqa: F401  # registers custom_mixture
from tests.seqio.helpers import BYTES, TRANSLATION, write_mirror, write_parquet

seqio = pytest.importorskip("seqio")

LENGTHS = {"inputs": 64, "targets": 16}
COLOURS = ["red", "blue", "green"]
# The rows that custom_tasks leaves out are those whose number ends in 0.
NUMBERS = [n for n in range(12) if n % 10]


@pytest.fixture(autouse=True)
def empty_registries() -> Iterator[None]:
    yield
    seqio.TaskRegistry.reset()
    seqio.MixtureRegistry.reset()
    seqio_registry._REGISTERED.clear()


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


def test_prompts_have_t0s_metrics(prompts: Path, datasets_dir: Path) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    prompt = "super_glue_cb_can_we_infer"
    choices = ["entailment", "contradiction", "neutral"]
    lengths = {"inputs": 1024, "targets": 16}
    for name in (prompt, f"{prompt}_score_eval"):
        seqio_registry.register(name, vocabulary=BYTES, data_dir=datasets_dir, templates=prompts)
    found = evaluate(prompt, lambda text: choices[len(text) % 2], lengths=lengths)
    task = seqio.get_mixture_or_task(prompt)
    texts = [
        (each["inputs_pretokenized"].decode(), each["targets_pretokenized"].decode())
        for each in task.get_dataset(None, split="validation", shuffle=False).as_numpy_iterator()
    ]
    targets = [choices.index(target) for _, target in texts]
    predictions = [len(inputs) % 2 for inputs, _ in texts]
    f1 = f1_score(targets, predictions, average="macro", labels=[0, 1, 2], zero_division=0.0)
    expected = {
        "accuracy": pytest.approx(100 * accuracy_score(targets, predictions)),
        "mean_3class_f1": pytest.approx(100 * f1),
    }
    assert found[prompt] == expected

    # The shortest choice, "neutral", is the most likely one.
    ranked = evaluate(
        f"{prompt}_score_eval", score=lambda ids: -float(np.count_nonzero(ids)), lengths=lengths
    )
    share = 100 * targets.count(2) / len(targets)
    assert ranked[f"{prompt}_score_eval"]["accuracy"] == pytest.approx(share)
