"""Registering in SeqIO: lazily, by name, with the originals' features and our own text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.data.sources.datasets import open_split
from mtf.data.tasks.mixtures import list_mixtures
from mtf.data.tasks.mixtures import mixture as our_mixture
from mtf.data.tasks.prompts.templates import load_templates
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary
from mtf.evaluation import seqio_registry
from tests.seqio.helpers import BYTES, TRANSLATION, write_mirror

seqio = pytest.importorskip("seqio")

NUM_ROWS = 20


@pytest.fixture(autouse=True)
def empty_registries() -> Iterator[None]:
    yield
    seqio.TaskRegistry.reset()
    seqio.MixtureRegistry.reset()
    seqio_registry._REGISTERED.clear()


def test_importing_registers_nothing_and_loads_no_tensorflow() -> None:
    code = (
        "import sys, mtf.data.tasks, mtf.data.tasks.mixtures, mtf.evaluation.seqio_registry\n"
        "assert not {'tensorflow', 'seqio'} & set(sys.modules)\n"
        "import seqio\n"
        "assert not seqio.TaskRegistry.names() and not seqio.MixtureRegistry.names()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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


def test_another_vocabulary_under_the_same_name_is_refused(tmp_path: Path) -> None:
    mirror = write_mirror(tmp_path)
    seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=mirror)
    with pytest.raises(UserError, match=r"already registered.*byte\+0.*byte\+100"):
        seqio_registry.register(TRANSLATION, vocabulary=ByteVocabulary(100), data_dir=mirror)


def test_a_name_of_another_library_is_refused(tmp_path: Path) -> None:
    mirror = write_mirror(tmp_path)
    seqio_registry.register(TRANSLATION, vocabulary=BYTES, data_dir=mirror)
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
    for name in ("t0++_train", "t0_eval_score_eval"):
        seqio_registry.register(name, vocabulary=BYTES, data_dir=datasets_dir, templates=prompts)
    train = seqio.get_mixture_or_task("t0++_train")
    assert len(train.tasks) == 464
    assert sum(train.get_rate(task) for task in train.tasks) == 23_118_591
    evaluation = seqio.get_mixture_or_task("t0_eval_score_eval")
    [copa] = [task for task in evaluation.tasks if "copa_best_option" in task.name]
    assert evaluation.get_rate(copa) == 60


def test_t0s_tasks_have_other_names_with_mt5s_vocabulary(prompts: Path, datasets_dir: Path) -> None:
    for name in ("t0++_train", "mt5_d4_gpt_sglue_train"):
        seqio_registry.register(name, vocabulary=BYTES, data_dir=datasets_dir, templates=prompts)
    names = {task.name for task in seqio.get_mixture_or_task("t0++_train").tasks}
    multilingual = {task.name for task in seqio.get_mixture_or_task("mt5_d4_gpt_sglue_train").tasks}
    assert multilingual == {f"mt5_{name}" for name in names}


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
