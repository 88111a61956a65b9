"""Mixtures against T0's and mT0's own definitions.

`golden_mixtures.tsv` was made by running those definitions themselves (the files tasks.py of
bigscience-workshop/t-zero and lintangsutawika/multilingual-t0) with promptsource 0.2.3 and with
stand-ins for SeqIO and the datasets: a row is a task, its rate, and the mixtures that have it.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtf.errors import UserError
from mtf.sources.datasets import MissingDatasetError
from mtf.tasks import registry
from mtf.tasks.mixtures import (
    list_mixtures,
    list_tasks,
    mixture,
    prompted_task,
    prompts_have_eos,
    split_available,
)
from mtf.tasks.prompted import PromptedTask
from mtf.tasks.prompts.templates import Templates, load_templates
from mtf.tasks.t0 import datasets
from tests.conftest import SHARED, needs_shared
from tests.tasks.prompts.helpers import YAML

ARCHIVE = SHARED / "data" / "promptsource" / "templates-0.2.3.tar.gz"
GOLDEN = Path(__file__).with_name("golden_mixtures.tsv")

# Name → tasks, datasets, sum of rates; from FACTS' table, which counted the originals.
FACTS: dict[str, tuple[int, int, int | None]] = {
    "t0_train": (313, 38, 17_277_798),
    "t0+_train": (392, 48, 20_672_671),
    "t0++_train": (464, 54, 23_118_591),
    "t0_train_one_og_prompt": (35, 35, 1_993_444),
    "t0_train_all_og_prompts": (222, 35, 12_527_831),
    "t0_eval_score_eval": (116, 9, None),
    "t0_train_score_eval": (89, 14, None),
    "bias_fairness_eval_score_eval": (16, 2, None),
    "mt5_d4_gpt_sglue_train": (464, 54, 23_118_591),
}
MT0_COUNTS = {
    "mt5_d4_train": 313,
    "gpt_train": 44,
    "sglue_train": 72,
    "t0_plus_train": 357,
    "t0_plus_plus_train": 429,
    "mt0_train_mixture": 494,
    "mt0p_train_mixture": 555,
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
EVALUATION = {
    "anli": 45,
    "super_glue/cb": 15,
    "super_glue/copa": 12,
    "super_glue/rte": 10,
    "super_glue/wic": 10,
    "super_glue/wsc.fixed": 10,
    "winogrande/winogrande_xl": 5,
    "story_cloze/2016": 5,
    "hellaswag": 4,
}


@pytest.fixture(scope="module")
def templates() -> Templates:
    return load_templates(ARCHIVE)


def made_up(**others: str) -> Templates:
    """Two prompts of our own for every dataset."""
    files = {row.key: YAML.encode() for row in datasets() if any(row.fingerprints)}
    return Templates("ours", {**files, **{key: text.encode() for key, text in others.items()}})


def rates(name: str, templates: Templates) -> dict[str, int | None]:
    tasks = mixture(name, templates, check_version=False).tasks
    found = {task.name: rate for task, rate in tasks}
    assert len(found) == len(tasks)  # names are unique
    return found


@needs_shared
@pytest.mark.parametrize("name", FACTS)
def test_counts_and_rates_are_the_facts(name: str, templates: Templates) -> None:
    num_tasks, num_datasets, sum_of_rates = FACTS[name]
    tasks = mixture(name, templates).tasks
    assert len({task.name for task, _ in tasks}) == len(tasks) == num_tasks
    assert len({(task.dataset, task.subset) for task, _ in tasks}) == num_datasets
    if sum_of_rates is None:
        assert {rate for _, rate in tasks} == {None}
    else:
        assert sum(rate or 0 for _, rate in tasks) == sum_of_rates


@needs_shared
@pytest.mark.parametrize("name", MT0_COUNTS)
def test_counts_of_mt0s_mixtures_are_the_facts(name: str, templates: Templates) -> None:
    made = mixture(name, templates)
    assert len({task.name for task, _ in made.tasks}) == len(made.tasks) == MT0_COUNTS[name]
    assert made.vocabulary == "mt5"


@needs_shared
def test_tasks_and_rates_are_those_of_the_originals(templates: Templates) -> None:
    golden: dict[str, dict[str, int | None]] = defaultdict(dict)
    with GOLDEN.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            for name in row["mixtures"].split():
                golden[name][row["task"]] = int(row["rate"]) if row["rate"] else None
    assert len(golden) == 14
    for name, expected in golden.items():
        assert rates(name, templates) == expected, name


@needs_shared
def test_what_t0_is_evaluated_on(templates: Templates) -> None:
    tasks = [task for task, _ in mixture("t0_eval_score_eval", templates).tasks]
    counts = Counter(f"{task.dataset}/{task.subset}".removesuffix("/None") for task in tasks)
    assert counts == EVALUATION
    assert all(task.kind == "rank" and task.name.endswith("_score_eval") for task in tasks)
    anli = [task for task in tasks if task.dataset == "anli"]
    for part in ("r1", "r2", "r3"):
        of_round = [task for task in anli if task.name.endswith(f"_{part}_score_eval")]
        assert len(of_round) == 15
        for task in of_round:
            assert task.splits == {
                "train": f"train_{part}",
                "validation": f"dev_{part}",
                "test": f"test_{part}",
            }


@needs_shared
def test_what_bias_is_evaluated_on(templates: Templates) -> None:
    tasks = [task for task, _ in mixture("bias_fairness_eval_score_eval", templates).tasks]
    counts = Counter((task.dataset, task.subset) for task in tasks)
    assert counts == {("super_glue", "axg"): 10, ("crows_pairs", None): 6}


@needs_shared
def test_one_prompt_of_the_original_task(templates: Templates) -> None:
    everything = rates("t0_train", templates)
    one = [task for task, _ in mixture("t0_train_one_og_prompt", templates).tasks]
    every = [task for task, _ in mixture("t0_train_all_og_prompts", templates).tasks]
    for task in one:
        siblings = [t for t in every if (t.dataset, t.subset) == (task.dataset, task.subset)]
        assert task.template.name == min(t.template.name for t in siblings)
    left_out = {"kilt_tasks/hotpotqa", "app_reviews", "quarel"}
    base = {row.key for row in datasets() if "BASE" in row.groups}
    assert {f"{t.dataset}/{t.subset}".removesuffix("/None") for t in one} == base - left_out
    assert {task.name for task in every} <= set(everything)


@needs_shared
def test_large_datasets_are_capped(templates: Templates) -> None:
    by_dataset: dict[str, set[int | None]] = defaultdict(set)
    for task, rate in mixture("t0++_train", templates).tasks:
        by_dataset[task.dataset].add(rate)
    assert by_dataset["amazon_polarity"] == by_dataset["gigaword"] == {55_555}
    assert by_dataset["yelp_review_full"] == {71_428}
    assert by_dataset["wiki_bio"] == {100_000}
    assert by_dataset["dbpedia_14"] == {125_000}
    assert by_dataset["glue"] == {3_668, 363_846}


@needs_shared
def test_the_same_templates_have_the_same_fingerprint(templates: Templates) -> None:
    first = mixture("t0_train", templates).fingerprint
    assert first == mixture("t0_train", load_templates(ARCHIVE)).fingerprint
    assert first != mixture("t0+_train", templates).fingerprint
    assert first != mixture("mt5_d4_train", templates).fingerprint  # inputs have EOS


@needs_shared
@pytest.mark.parametrize("name", list_mixtures())
def test_prompts_have_eos_on_inputs_only_in_mt0s_first_mixtures(
    name: str, templates: Templates
) -> None:
    prompted = [t for t, _ in mixture(name, templates).tasks if isinstance(t, PromptedTask)]
    expected = name in ("mt5_d4_train", "mt5_d4_gpt_sglue_train", "mt0_eos_score_eval")
    assert {task.inputs_add_eos for task in prompted} <= {expected}
    assert all(task.targets_add_eos for task in prompted)
    assert prompts_have_eos(name) == expected


@needs_shared
def test_templates_of_another_version_are_refused(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "promptsource" / "templates"
    for key in ("super_glue/copa", "acronym_identification"):
        file = root / key / "templates.yaml"
        file.write_text(re.sub(r"\blabel\b", "class", file.read_text("utf-8")), "utf-8")
    changed = load_templates(tmp_path)
    message = (
        r"defined with the templates of promptsource 0\.2\.3 or 0\.1\.0, but the "
        r"templates of super_glue/copa differ from those of 0\.2\.3\. Use the templates of one"
    )
    with pytest.raises(UserError, match=message):
        mixture("t0_eval_score_eval", changed)
    assert len(mixture("t0_eval_score_eval", changed, check_version=False).tasks) == 116
    assert len(mixture("t0_train_score_eval", load_templates(ARCHIVE)).tasks) == 89
    assert mixture("gpt_train", changed)  # has none of them


def test_definitions_need_no_library_before_they_are_asked_for() -> None:
    code = "import sys, mtf.tasks.mixtures, mtf.sources.datasets; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"jinja2", "yaml", "pyarrow", "datasets", "numpy", "jax", "tensorflow", "seqio"}
    assert not heavy & set(done.stdout.split())


def test_older_names() -> None:
    made = made_up()
    older_names = {
        "d4_train": "t0_train",
        "d4_gpt_train": "t0+_train",
        "d4_gpt_eval_train": "t0+_train",
        "d4_gpt_sglue_train": "t0++_train",
        "d4_train_one_og_prompt": "t0_train_one_og_prompt",
        "d4_train_all_og_prompts": "t0_train_all_og_prompts",
        "d4_score_eval": "t0_eval_score_eval",
        "d4_eval_score_eval": "t0_eval_score_eval",
        "d4_train_score_eval": "t0_train_score_eval",
    }
    assert list_mixtures()[-len(older_names) :] == tuple(older_names)
    for older, name in older_names.items():
        assert rates(older, made) == rates(name, made)
        assert mixture(older, made, check_version=False).name == older


def test_broken_tasks_are_left_out_of_training_and_still_counted_by_the_cap() -> None:
    made = made_up(gigaword=YAML.replace("name: describe", "name: 'summarize:'"))
    for name in ("t0_train", "t0_train_all_og_prompts"):
        found = {task: rate for task, rate in rates(name, made).items() if "gigaword" in task}
        assert found == {"gigaword_which_is_it": 250_000}
    assert prompted_task("gigaword_summarize_", made).template.name == "summarize:"


def test_a_task_by_its_name() -> None:
    made = made_up()
    task = prompted_task("super_glue_wsc.fixed_which_is_it", made)
    assert (task.dataset, task.subset, task.kind) == ("super_glue", "wsc.fixed", "generate")
    assert prompted_task(task.name + "_score_eval", made) == task.score_eval()
    assert prompted_task("anli_describe_r2", made).splits["validation"] == "dev_r2"
    message = r"no task 'anli_describe_r2_score_eval'\. Did you mean .*_score_eval"
    with pytest.raises(UserError, match=message):  # it has no choices
        prompted_task("anli_describe_r2_score_eval", made)
    with pytest.raises(UserError, match=r"no task 'anli_describe_r9'\. Did you mean anli_describ"):
        prompted_task("anli_describe_r9", made)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("t0_trian", r" Did you mean t0_train, "),
        ("c4_span_corruption", r" Did you mean c4_v220_span_corruption(,| or) "),
        ("super_glue_rte_which_is_i", r" Did you mean super_glue_rte_which_is_it, "),
        (
            "!",
            r" `python -m mtf\.data --list` lists all mixtures\. "
            r"Your own tasks need --module/data\.module\.$",
        ),
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


def test_a_task_is_a_mixture_of_one() -> None:
    made = made_up()
    prompted = mixture("super_glue_rte_which_is_it", made, check_version=False)
    assert prompted.tasks == ((prompted_task("super_glue_rte_which_is_it", made), None),)
    assert prompted.vocabulary == "t5"
    [(ranked, _)] = mixture("anli_which_is_it_r1_score_eval", made, check_version=False).tasks
    assert ranked.kind == "rank" and ranked.splits["train"] == "train_r1"
    [(text, _)] = mixture("c4_v220_span_corruption").tasks
    assert text.kind == "documents"
    assert mixture("opus100_en_ro_mt").vocabulary == "mt5"
    with pytest.raises(UserError, match="ours: this mixture is defined with"):
        mixture("super_glue_rte_which_is_it", made)


def test_all_tasks_have_names_of_their_own() -> None:
    names = list_tasks(made_up())
    assert len(set(names)) == len(names)
    assert not set(names) & set(list_mixtures())
    assert {"mc4.ro", "opus100_ro_en_mt", "xnli_sw_which_is_it_score_eval"} <= set(names)


def test_the_fingerprint_of_a_mixture_is_that_of_its_tasks() -> None:
    made = made_up()
    first = mixture("gpt_train", made, check_version=False)
    other = made_up(piqa=YAML.replace("Is {{", "Was {{"))
    assert first.fingerprint == mixture("gpt_train", made_up(), check_version=False).fingerprint
    assert first.fingerprint != mixture("gpt_train", other, check_version=False).fingerprint
    assert mixture("mc4").fingerprint != mixture("mc4_prefix_lm").fingerprint
    assert len(mixture("opus100_train_mixture").fingerprint) == 16


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_evaluation_goes_on_without_story_cloze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delenv("MTF_DATA_DIR", raising=False)
    made = mixture("t0_eval_score_eval", made_up(), check_version=False)
    sources = {(t.dataset, t.subset, t.source_split("validation")) for t, _ in made.tasks}
    for dataset, subset, split in sources - {("story_cloze", "2016", "validation")}:
        write(tmp_path / dataset / (subset or "") / f"{split}.parquet", [{"label": 0}])
    present, [(absent, reason)] = split_available(made, "validation", tmp_path)
    assert absent.dataset == "story_cloze"
    assert "https://cs.rochester.edu/nlp/rocstories/" in reason
    assert [*present] == [task for task, _ in made.tasks if task is not absent]

    write(tmp_path / "story_cloze" / "2016" / "validation.parquet", [{"label": 0}])
    assert split_available(made, "validation", tmp_path) == (tuple(t for t, _ in made.tasks), ())

    (tmp_path / "hellaswag" / "validation.parquet").unlink()
    with pytest.raises(MissingDatasetError, match="hellaswag, split validation, is missing"):
        split_available(made, "validation", tmp_path)


def test_templates_that_lack_a_dataset_are_named() -> None:
    few = Templates("few", {"glue/mrpc": YAML.encode()})
    message = r"few: .* promptsource 0\.2\.3 or 0\.1\.0.* the templates of "
    with pytest.raises(UserError, match=message):
        mixture("t0_train", few)
    with pytest.raises(UserError, match="few: there are no templates for glue/qqp"):
        mixture("t0_train", few, check_version=False)
