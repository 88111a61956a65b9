"""OPUS-100, and mT0's English prompts on rows in many languages."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.data.tasks.mixtures import mixture, prompted_task
from mtf.data.tasks.prompts.templates import Templates, load_templates
from mtf.data.tasks.translation import opus100_sizes, translation_tasks

# As they stand in multilingual-t0's t5x/tasks.py.
PROBABILITIES = {
    "en-ro": 0.013727394606023641,
    "en-tk": 0.003739976949602965,
    "af-en": 0.00932460135340488,
    "am-en": 0.006644229723389183,
    "dz-en": 0.0015001804272129933,
    "en-yi": 0.003894953935034027,
}


def test_sizes_are_those_of_the_corpus() -> None:
    sizes = opus100_sizes()
    # The paper: 99 pairs, of which 44 have 1M sentence pairs, 73 at least 100k, 95 at least 10k;
    # 55M in all. Two of them as the TFDS catalogue has them.
    assert len(sizes) == 99
    counts = [sum(size >= least for size in sizes.values()) for least in (10**6, 10**5, 10**4)]
    assert counts == [44, 73, 95]
    assert sum(sizes.values()) == pytest.approx(55e6, rel=0.01)
    assert (sizes["af-en"], sizes["am-en"]) == (275_512, 89_027)


def test_rates_keep_mt0s_probabilities() -> None:
    tasks = mixture("opus100_train_mixture").tasks
    assert len(tasks) == 99
    rates = {task.subset: rate or 0 for task, rate in tasks}
    for pair, probability in PROBABILITIES.items():
        # Rates are whole numbers.
        share = rates[pair] / sum(rates.values())
        assert share == pytest.approx(probability, abs=0.6 / sum(rates.values()) + 1e-6)


def test_a_row_is_translated_in_the_direction_of_the_task() -> None:
    row = {"translation": {"en": "Good day!", "ro": "Bună ziua!"}}
    there = translation_tasks()["opus100_en_ro_mt"]
    back = translation_tasks()["opus100_ro_en_mt"]
    assert there.subset == back.subset == "en-ro"
    assert there.fingerprint != back.fingerprint
    assert list(there.examples([row], "train")) == [
        {"inputs": "Translate from en to ro: Good day!", "targets": "Bună ziua!"}
    ]
    assert list(back.examples([row], "train")) == [
        {"inputs": "Translate from ro to en: Bună ziua!", "targets": "Good day!"}
    ]
    assert (there.inputs_add_eos, there.targets_add_eos) == (False, True)
    assert there.metrics == ("bleu",)
    assert there.postprocess(" Bună ziua! \n") == "Bună ziua!"


def test_rows_with_an_empty_side_are_left_out() -> None:
    task = translation_tasks()["opus100_en_ro_mt"]
    for row in ({"en": "", "ro": "b"}, {"en": "a", "ro": ""}):
        assert task.row_examples({"translation": row}, 0, "train") == []


def test_a_row_of_another_pair_is_named() -> None:
    task = translation_tasks()["opus100_en_ro_mt"]
    with pytest.raises(UserError, match=r"opus100_en_ro_mt: .* no column 'ro'; it has en, fr\."):
        task.row_examples({"translation": {"en": "a", "fr": "b"}}, 0, "train")
    with pytest.raises(UserError, match="no column 'translation'; it has text"):
        task.row_examples({"text": "a"}, 0, "train")


TURKISH = {
    "premise": "Kadın emekli oldu.",
    "choice1": "Emekli maaşını aldı.",
    "choice2": "İpoteğini ödedi.",
    "question": "effect",
    "label": 0,
    "idx": 2,
    "changed": False,
}


@pytest.fixture
def templates(prompts: Path) -> Templates:
    return load_templates(prompts)


def test_xcopas_text_is_that_of_copas_prompts(templates: Templates) -> None:
    num_compared = 0
    for task, _ in mixture("xcopa_eval", templates).tasks:
        if task.subset == "tr":
            english = prompted_task(task.name.replace("xcopa_tr", "super_glue_copa"), templates)
            expected = english.row_examples(TURKISH, 0, "validation")
            assert task.row_examples(TURKISH, 0, "validation") == expected
            num_compared += len(expected)
    assert num_compared == 12


# Language → sentences of a row of XStoryCloze and of XWinograd, in their columns.
STORY = {
    "story_id": "1",
    **{f"input_sentence_{i}": f"Sentensi ya {i}." for i in range(1, 5)},
    "sentence_quiz1": "Alifurahi.",
    "sentence_quiz2": "Alilia.",
    "answer_right_ending": 2,
}
WINOGRAD = {
    "sentence": "O troféu não cabe na mala porque _ é muito grande.",
    "option1": "o troféu",
    "option2": "a mala",
    "answer": "1",
}


@pytest.mark.parametrize(
    ("prefix", "row", "choices", "answer"),
    [
        ("xstory_cloze_sw", STORY, ["Alifurahi.", "Alilia."], "Alilia."),
        ("xwinograd_pt", WINOGRAD, ["o troféu", "a mala"], "o troféu"),
    ],
)
def test_the_papers_prompts_rank_rows_of_other_languages(
    prefix: str, row: dict[str, object], choices: list[str], answer: str, templates: Templates
) -> None:
    tasks = [t for t, _ in mixture("mt0_score_eval", templates).tasks if t.name.startswith(prefix)]
    assert len(tasks) == 5
    for task in tasks:
        examples = task.row_examples(row, 0, "validation")
        found = [example["targets"] for example in examples]
        right = [example["targets"] for example in examples if example["is_correct"]]
        assert (found, right) == (choices, [answer])


def test_xwinograd_is_validated_on_its_test_data(templates: Templates) -> None:
    for task, _ in mixture("mt0_score_eval", templates).tasks:
        expected = "test" if task.dataset == "xwinograd" else "validation"
        assert task.source_split("validation") == expected
