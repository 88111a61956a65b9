"""Mixtures against T0's and mT0's own definitions.

`golden_mixtures.tsv` was made by running those definitions themselves (the files tasks.py of
bigscience-workshop/t-zero and lintangsutawika/multilingual-t0) with promptsource 0.2.3 and with
stand-ins for SeqIO and the datasets: a row is a task, its rate, and the mixtures that have it. The
templates here are made up, with the names of promptsource's.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.data.sources.datasets import MissingDatasetError
from mtf.data.tasks import registry, t0
from mtf.data.tasks.mixtures import (
    list_mixtures,
    list_tasks,
    mixture,
    prompted_task,
    prompts_have_eos,
    split_available,
)
from mtf.data.tasks.prompted import PromptedTask
from mtf.data.tasks.prompts.templates import Templates, load_templates
from mtf.data.tasks.t0 import datasets
from tests.data.helpers import write_parquet
from tests.storage import prompted_hub
from tests.tasks.prompts.helpers import YAML, write_tree

GOLDEN = Path(__file__).with_name("golden_mixtures.tsv")

# Number of tasks of mT0's mixtures that are not in this file.
MT0_COUNTS = {
    "mt5_d4_train": 313,
    "mt5_d4_gpt_sglue_train": 464,
    # 15 languages with 15 prompts, 11 with 12; T0's tasks with 99 pairs of languages.
    "xnli_eval": 225,
    "xnli_score_eval": 225,
    "xcopa_eval": 132,
    "xcopa_score_eval": 132,
    # 10 languages with 6 prompts, 6 with 6; 42 with the 5 of mT0's paper.
    "xstory_cloze_score_eval": 60,
    "xwinograd_score_eval": 36,
    "mt0_score_eval": 210,
    "mt0_eos_score_eval": 210,
    "t0_train_plus_opus": 313 + 99,
    "t0pp_train_plus_opus": 429 + 99,
}


@pytest.fixture
def any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepts templates of every version, such as made-up ones."""
    monkeypatch.setattr(t0, "check_templates", lambda templates, rows: None)


@pytest.fixture
def templates(prompts: Path) -> Templates:
    return load_templates(prompts)


def made_up(**others: str) -> Templates:
    """Returns two made-up prompts for every dataset."""
    files = {row.key: YAML.encode() for row in datasets() if any(row.fingerprints)}
    return Templates("ours", {**files, **{key: text.encode() for key, text in others.items()}})


def rates(name: str, templates: Templates) -> dict[str, int | None]:
    tasks = mixture(name, templates).tasks
    found = {task.name: rate for task, rate in tasks}
    assert len(found) == len(tasks)  # names are unique
    return found


def test_sizes_of_mt0s_mixtures(templates: Templates) -> None:
    for name, num_tasks in MT0_COUNTS.items():
        made = mixture(name, templates)
        assert len({task.name for task, _ in made.tasks}) == len(made.tasks) == num_tasks
        assert made.vocabulary == "mt5"


def test_tasks_and_rates_are_those_of_the_originals(templates: Templates) -> None:
    golden: dict[str, dict[str, int | None]] = defaultdict(dict)
    with GOLDEN.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            for name in row["mixtures"].split():
                golden[name][row["task"]] = int(row["rate"]) if row["rate"] else None
    assert len(golden) == 14
    for name, expected in golden.items():
        assert rates(name, templates) == expected, name


def test_prompts_have_eos_on_inputs_only_in_mt0s_first_mixtures(templates: Templates) -> None:
    for name in list_mixtures():
        prompted = [t for t, _ in mixture(name, templates).tasks if isinstance(t, PromptedTask)]
        expected = name in ("mt5_d4_train", "mt5_d4_gpt_sglue_train", "mt0_eos_score_eval")
        assert {task.inputs_add_eos for task in prompted} <= {expected}
        assert all(task.targets_add_eos for task in prompted)
        assert prompts_have_eos(name) == expected


def test_templates_of_another_version_are_refused(templates: Templates, tmp_path: Path) -> None:
    files = prompted_hub.stand_ins()
    files["super_glue/copa"] = files["super_glue/copa"].replace("label", "class")
    changed = load_templates(write_tree(tmp_path, files))
    message = (
        r"defined with the templates of promptsource 0\.2\.3 or 0\.1\.0, but the "
        r"templates of super_glue/copa differ from those of 0\.2\.3\. Use the templates of one"
    )
    with pytest.raises(UserError, match=message):
        mixture("t0_eval_score_eval", changed)
    few = Templates("few", {"glue/mrpc": YAML.encode()})
    for name, others in (("t0_train", few), ("super_glue_rte_which_is_it", made_up())):
        with pytest.raises(UserError, match="defined with the templates of promptsource"):
            mixture(name, others)
    assert len(mixture("t0_train_score_eval", templates).tasks) == 89
    assert mixture("gpt_train", changed)  # has none of them


@pytest.mark.usefixtures("any_version")
def test_older_names() -> None:
    made = made_up()
    older_names = {
        "d4_gpt_train": "t0+_train",
        "d4_gpt_eval_train": "t0+_train",
        "d4_eval_score_eval": "t0_eval_score_eval",
    }
    assert set(older_names) <= set(list_mixtures()[-9:])
    for older, name in older_names.items():
        assert rates(older, made) == rates(name, made)
        assert mixture(older, made).name == older


@pytest.mark.usefixtures("any_version")
def test_broken_tasks_are_left_out_of_training_and_still_counted_by_the_cap() -> None:
    made = made_up(gigaword=YAML.replace("name: describe", "name: 'summarize:'"))
    for name in ("t0_train", "t0_train_all_og_prompts"):
        found = {task: rate for task, rate in rates(name, made).items() if "gigaword" in task}
        assert found == {"gigaword_which_is_it": 250_000}
    assert prompted_task("gigaword_summarize_", made).template.name == "summarize:"


@pytest.mark.usefixtures("any_version")
def test_a_task_by_its_name() -> None:
    made = made_up()
    task = prompted_task("super_glue_wsc.fixed_which_is_it", made)
    assert (task.dataset, task.subset, task.kind) == ("super_glue", "wsc.fixed", "generate")
    assert prompted_task(task.name + "_score_eval", made) == task.score_eval()
    assert prompted_task("anli_describe_r2", made).splits["validation"] == "dev_r2"
    with pytest.raises(UserError, match="task anli_describe_r2 has no answer choices to rank"):
        prompted_task("anli_describe_r2_score_eval", made)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("t0_trian", r" Did you mean t0_train, "),
        ("c4_span_corruption", r" Did you mean c4_v220_span_corruption(,| or) "),
        ("super_glue_rte_which_is_i", r" Did you mean super_glue_rte_which_is_it, "),
        ("!", r" `python -m mtf data --list` .* Custom tasks need --module/data\.module\.$"),
    ],
)
def test_an_unknown_name_is_named_with_its_neighbours(
    name: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", type(registry._REGISTRY)())
    with pytest.raises(UserError, match=rf"there is no mixture or task '{name}'\.{hint}") as error:
        mixture(name, made_up())
    assert len(str(error.value)) < 200  # not a list of all


def test_an_unknown_name_without_templates_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MTF_PROMPTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    message = r"no mixture 't0_trian'\. Did you mean t0_train.* no prompt templates .*prompts fetch"
    with pytest.raises(UserError, match=message):
        mixture("t0_trian")
    assert mixture("mc4_prefix_lm").name == "mc4_prefix_lm"  # text and translation need none


@pytest.mark.usefixtures("any_version")
def test_a_task_is_a_mixture_of_one() -> None:
    made = made_up()
    prompted = mixture("super_glue_rte_which_is_it", made)
    assert prompted.tasks == ((prompted_task("super_glue_rte_which_is_it", made), None),)
    assert prompted.vocabulary == "t5"
    [(ranked, _)] = mixture("anli_which_is_it_r1_score_eval", made).tasks
    assert ranked.kind == "rank" and ranked.splits["train"] == "train_r1"
    [(text, _)] = mixture("c4_v220_span_corruption").tasks
    assert text.kind == "documents"
    assert mixture("opus100_en_ro_mt").vocabulary == "mt5"


def test_all_tasks_have_names_of_their_own() -> None:
    names = list_tasks(made_up())
    assert len(set(names)) == len(names)
    assert not set(names) & set(list_mixtures())
    assert {"mc4.ro", "opus100_ro_en_mt", "xnli_sw_which_is_it_score_eval"} <= set(names)


@pytest.mark.usefixtures("any_version")
def test_the_fingerprint_of_a_mixture_is_that_of_its_tasks() -> None:
    made = made_up()
    first = mixture("gpt_train", made)
    other = made_up(piqa=YAML.replace("Is {{", "Was {{"))
    assert first.fingerprint == mixture("gpt_train", made_up()).fingerprint
    assert first.fingerprint != mixture("gpt_train", other).fingerprint
    assert mixture("mc4").fingerprint != mixture("mc4_prefix_lm").fingerprint
    assert len(mixture("opus100_train_mixture").fingerprint) == 16


@pytest.mark.usefixtures("any_version")
def test_evaluation_goes_on_without_story_cloze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delenv("MTF_DATA_DIR", raising=False)
    made = mixture("t0_eval_score_eval", made_up())
    sources = {(t.dataset, t.subset, t.source_split("validation")) for t, _ in made.tasks}
    for dataset, subset, split in sources - {("story_cloze", "2016", "validation")}:
        write_parquet(tmp_path / dataset / (subset or "") / f"{split}.parquet", [{"label": 0}])
    present, [(absent, reason)] = split_available(made, "validation", tmp_path)
    assert absent.dataset == "story_cloze"
    assert "https://cs.rochester.edu/nlp/rocstories/" in reason
    others = [task for task, _ in made.tasks if task is not absent]
    assert [task for task, _ in present] == others
    assert [[*rows] for _, rows in present] == [[{"label": 0}]] * len(others)

    write_parquet(tmp_path / "story_cloze/2016/validation.parquet", [{"label": 0}])
    present, absent_tasks = split_available(made, "validation", tmp_path)
    assert [task for task, _ in present] == [task for task, _ in made.tasks]
    assert not absent_tasks

    (tmp_path / "hellaswag" / "validation.parquet").unlink()
    with pytest.raises(MissingDatasetError, match="hellaswag, split validation, is missing"):
        split_available(made, "validation", tmp_path)
