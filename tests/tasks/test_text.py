"""Tasks of plain text: names and settings of the originals, mC4's languages, documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data.tasks.mixtures import mixture
from mtf.data.tasks.objectives import BertStyle, IidDenoising, PrefixLM, SpanCorruption
from mtf.data.tasks.task import table
from mtf.data.tasks.text import TextTask, mc4_subsets, text_tasks

# The mT5 paper's Table 6: pages in millions, and percent.
TABLE_6 = {
    "en": (3067, 5.67),
    "ru": (756, 3.71),
    "ro": (46, 1.58),
    "iw": (12, 1.06),
    "sw": (1.0, 0.50),
    "bg-Latn": (0.2, 0.29),
    "yo": (0.05, 0.20),
}
EXAMPLE = {"url": "https://example.org", "text": "Ştefan ţine. Ţara şi Ținta."}


def task(**changes: Any) -> TextTask:
    return replace(text_tasks()["c4_v220_span_corruption"], **changes)


def test_c4() -> None:
    names = {
        "span_corruption": SpanCorruption(),
        "iid_denoising": IidDenoising(),
        "prefix_lm": PrefixLM(),
        "bert_style": BertStyle(),
    }
    for name, objective in names.items():
        found = text_tasks()[f"c4_v220_{name}"]
        assert found.objective == objective
        assert (found.dataset, found.subset) == ("c4", "en")
        assert list(found.splits) == ["train", "validation"]
        assert found.inputs_add_eos and found.targets_add_eos
        assert (found.kind, found.vocabulary) == ("documents", "t5")


def test_the_romanian_task_has_no_eos_on_its_inputs() -> None:
    found = text_tasks()["rlm_span_corruption_stream"]
    assert (found.dataset, found.subset) == ("dumitrescustefan/rlm", None)
    assert found.targets_add_eos and not found.inputs_add_eos
    assert found.objective == SpanCorruption(noise_density=0.15, mean_noise_span_length=3.0)
    assert mixture("rlm_span_corruption_stream").vocabulary == "romanian"


def test_languages_are_those_of_the_papers_table() -> None:
    pages_of = {row["code"]: float(row["million_pages"]) for row in table("mc4_languages.csv")}
    romanized = [subset for subset in mc4_subsets() if subset.endswith("-Latn")]
    assert len(mc4_subsets()) == 101 + 6 and len(romanized) == 6
    for code, (pages, percent) in TABLE_6.items():
        subset = "en-multi" if code == "en" else code  # the hub's `en` is C4
        assert (pages_of[code], mc4_subsets()[subset]) == (pages, percent)
    # 107 figures rounded to hundredths.
    assert sum(mc4_subsets().values()) == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize(
    ("name", "objective", "inputs_add_eos"),
    [("mc4", SpanCorruption(), True), ("mc4_prefix_lm", PrefixLM(), False)],
)
def test_mixtures_of_mc4(name: str, objective: object, inputs_add_eos: bool) -> None:
    made = mixture(name)
    assert made.vocabulary == "mt5"
    rates = {task.name: rate or 0 for task, rate in made.tasks}
    assert len(rates) == 107
    for code, (_, percent) in TABLE_6.items():
        share = rates[f"{name}.{code.replace('-', '_')}"] / sum(rates.values())
        assert share == pytest.approx(percent / 100, rel=1e-3)
    for found, _ in made.tasks:
        assert isinstance(found, TextTask)
        assert found.objective == objective
        assert found.inputs_add_eos == inputs_add_eos and found.targets_add_eos


def test_mixtures_of_oscar() -> None:
    """Rates of n**0.3 for the numbers of documents on the dataset's card."""
    rates = {task.name: rate or 0 for task, rate in mixture("oscar_lm_adaptation").tasks}
    assert len(rates) == 166
    # 304,230,423, 115,954,598, 5,044,757, 24,803 documents and one.
    expected = {"en": 350.69, "ru": 262.64, "ro": 102.60, "sw": 20.815, "diq": 1.0}
    for code, rate in expected.items():
        assert rates[f"oscar_{code}_lm_objective"] == pytest.approx(rate, rel=1e-3)
    without = mixture("oscar_no_en_lm_adaptation")
    assert rates.keys() - {task.name for task, _ in without.tasks} == {"oscar_en_lm_objective"}
    assert without.vocabulary == "mt5"
    for found, _ in without.tasks:
        assert isinstance(found, TextTask)
        code = found.name.removeprefix("oscar_").removesuffix("_lm_objective")
        assert (found.dataset, found.subset) == ("oscar", f"unshuffled_deduplicated_{code}")
        assert found.objective == PrefixLM(merge_documents=128)
        assert found.targets_add_eos and not found.inputs_add_eos
        assert list(found.splits) == ["train"]


def test_a_row_is_a_document() -> None:
    assert task().row_examples(EXAMPLE, 0, "train") == [{"targets": EXAMPLE["text"]}]
    assert task().row_examples({"text": ""}, 0, "train") == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"txt": "a"}, r"no column 'text'; it has txt\. Did you mean txt\?"),
        ({"text": 7}, r"column 'text' of record 3 of train has type int; expected a string"),
        ({"text": None}, r"column 'text' of record 3 of train has type NoneType; expected a str"),
    ],
)
def test_a_row_without_text_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match="task c4_v220_span_corruption: .*" + message):
        task().row_examples(row, 3, "train")


def test_the_fingerprint_follows_what_decides_the_text() -> None:
    first = task().fingerprint
    assert first == task(name="other", objective=PrefixLM()).fingerprint
    assert first != task(dataset="other").fingerprint
