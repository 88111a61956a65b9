"""What a recipe reads from data in the layout of the original."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import fiddle as fdl
import pyarrow
import pyarrow.parquet
import pytest

import recipes
from mtf.base.errors import UserError
from mtf.cli import cache as cache
from mtf.data import ByteVocabulary
from mtf.data.loaders import make_evaluations, make_train_iterator
from mtf.evaluation.infer_eval import find_held_out
from mtf.evaluation.tasks import evaluation_tasks
from mtf.inference.opening import inputs_add_eos
from tests.data.helpers import BYTES, without_padding
from tests.test_loaders import examples_of_row


def test_xp3_is_read_once_and_inputs_have_no_eos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTF_CACHE", str(tmp_path))
    for language in ("ro", "en"):
        folder = tmp_path / "hf" / "datasets" / "bigscience" / "xP3" / language
        folder.mkdir(parents=True)
        lines = [
            json.dumps({"inputs": f"{language} {i}?", "targets": f"{language} {i}."}) + "\n"
            for i in range(100)
        ]
        (folder / f"merged_{language}.jsonl").write_text("".join(reversed(lines)))
        for part in (0, 1):  # xP3 has each pair again in the parts.
            (folder / f"xp3_part_{part}_train.jsonl").write_text("".join(lines[part::2]))
    config = recipes.mt0_xxl()
    config.data.vocabulary = fdl.Config(ByteVocabulary)
    config.data.task_feature_lengths = {"inputs": 16, "targets": 16}
    data = fdl.build(config.data)
    training: set[str] = set()
    iterator = make_train_iterator(data, batch_size=4)
    for _ in range(50):
        batch = next(iterator)
        inputs = [without_padding(row) for row in batch["encoder_input_tokens"]]
        targets = [without_padding(row) for row in batch["decoder_target_tokens"]]
        assert all(row[-1] != BYTES.eos_id for row in inputs)
        assert all(row[-1] == BYTES.eos_id for row in targets)
        training |= set(map(BYTES.decode, inputs))
    [batches] = make_evaluations(data, batch_size=4).values()
    held_out = {
        BYTES.decode(without_padding(row))
        for batch in batches()
        for row in batch["encoder_input_tokens"]
    }
    assert len(held_out) == 20 and not held_out & training
    assert len(held_out | training) == 200


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["ro_t5_base", "t5_1_1_small_c4"])
def test_a_streamed_evaluation_has_the_20_batches_of_the_original(
    recipe: str, tmp_path: Path
) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "one document"}) + "\n")
    lines = (json.dumps({"text": f"document {i:06d} of the corpus"}) + "\n" for i in range(20_000))
    (tmp_path / "validation.jsonl").write_text("".join(lines))
    config = getattr(recipes, recipe)()
    config.data.vocabulary = fdl.Config(ByteVocabulary, extra_ids=100)
    config.data.task_feature_lengths = {"inputs": 32, "targets": 8}
    config.data.dataset, config.data.subsets = "json", None
    config.data.data_files = {
        split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")
    }
    [batches] = make_evaluations(fdl.build(config.data), batch_size=config.batch_size).values()
    assert config.trainer.eval_steps == 20
    first = list(itertools.islice(batches(), config.trainer.eval_steps))
    assert len(first) == 20
    assert all(row.any() for batch in first for row in batch["encoder_input_tokens"])


@pytest.mark.parametrize(("recipe", "expected"), [("mt0_t0pp", True), ("t0pp_xxl", False)])
def test_whether_inputs_have_eos_is_known_without_templates(
    recipe: str, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MTF_PROMPTS", str(tmp_path / "missing"))
    assert inputs_add_eos(fdl.build(getattr(recipes, recipe)().data)) == expected


def test_fine_tuning_decodes_all_held_out_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"translate {i}\tübersetze {i}\n" for i in range(2000)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    config = recipes.t5_1_1_finetune()
    config.data.vocabulary = fdl.Config(ByteVocabulary)
    [held_out] = find_held_out(fdl.build(config.data), fdl.build(config.evaluator))
    assert (held_out.name, held_out.metrics) == ("held_out", ("accuracy",))
    assert len({tuple(example.inputs.tolist()) for example in held_out.examples}) == 128


def test_mt0_is_evaluated_on_a_mirrors_data(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "xwinograd/pt/test": {
            "sentence": "O troféu não cabe na mala porque _ é muito grande.",
            "option1": "o troféu",
            "option2": "a mala",
            "answer": "1",
        },
        "xnli/sw/validation": {
            "premise": "Mvua inanyesha.",
            "hypothesis": "Kuna mvua.",
            "label": 0,
        },
    }
    for name, row in rows.items():
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    monkeypatch.setenv("MTF_DATA_DIR", str(tmp_path))
    for add_eos in (False, True):
        config = recipes.mt0_eval(inputs_add_eos=add_eos)
        config.data.vocabulary = fdl.Config(ByteVocabulary)
        tasks = evaluation_tasks(fdl.build(config.data))
        assert len(tasks) == 210
        found = {task.name: task.load() for task in tasks if task.load is not None}
        assert len(found) == 10
        [example] = found["xwinograd_pt_underscore_refer_to_score_eval"].examples
        assert list(map(BYTES.decode, example.choices)) == ["o troféu", "a mala"]
        assert example.correct == [True, False]
        assert (example.inputs[-1] == BYTES.eos_id) == add_eos
        assert all(choice[-1] == BYTES.eos_id for choice in example.choices)
        [example] = found["xnli_sw_can_we_infer_score_eval"].examples
        assert list(map(BYTES.decode, example.choices)) == [
            "entailment",
            "neutral",
            "contradiction",
        ]


def test_mt5_is_adapted_to_oscar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in ("ro", "en"):
        path = tmp_path / f"oscar/unshuffled_deduplicated_{code}/train.parquet"
        path.parent.mkdir(parents=True)
        rows = [{"text": f"{code} {i:04d} {'text ' * 20}"} for i in range(300)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    monkeypatch.setenv("MTF_CACHE", str(tmp_path / "cache"))
    arguments = ["oscar_lm_adaptation", "--vocabulary", "byt5"]
    arguments += ["--data-dir", str(tmp_path), "--skip-missing", "--num-workers", "1"]
    assert cache.main(arguments) == 0
    config = recipes.mt5_lm_adapt(mixture="oscar_lm_adaptation")
    assert config.data.task_feature_lengths == {"inputs": 512, "targets": 256}
    config.data.vocabulary = fdl.Config(ByteVocabulary)
    with pytest.raises(UserError, match="164 of the 166 tasks of oscar_lm_adaptation are missing"):
        make_train_iterator(fdl.build(config.data), batch_size=4)
    config.data.allow_missing_tasks = True
    config.data.task_feature_lengths = {"inputs": 128, "targets": 128}
    iterator = make_train_iterator(fdl.build(config.data), batch_size=16)
    languages: Counter[str] = Counter()
    for batch in itertools.islice(iterator, 20):
        for row in range(16):
            for inputs, targets in examples_of_row(batch, row):
                assert inputs[-1] != BYTES.eos_id and targets[-1] == BYTES.eos_id
                text = BYTES.decode([*inputs, *targets[:-1]])
                languages.update(re.findall("(ro|en) ", text)[:1])
    # 304,230,423**0.3 and 5,044,757**0.3.
    assert languages["en"] / languages.total() == pytest.approx(350.69 / 453.29, abs=0.05)


def test_without_held_out_pairs_the_message_says_how_to_train(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("in\tout\n")
    config = recipes.t5_1_1_finetune(files=str(tmp_path / "one.tsv"))
    config.data.vocabulary = fdl.Config(ByteVocabulary)
    with pytest.raises(UserError, match=r"no held-out examples\. .* set evaluator=None to train"):
        find_held_out(fdl.build(config.data), fdl.build(config.evaluator))
