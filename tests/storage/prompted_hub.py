"""Makes datasets with made-up records and templates of our own available as in the originals.

The datasets are those of T0 and of mT0's evaluation: repositories of a Hugging Face hub, or files
of a mirror; Story Cloze is its authors' file. The templates have the names of promptsource's, and
are in an sdist that pip downloads.

The records have the columns of the originals where `mtf` or another test names them. All other
datasets have either a text with a class, if T0 ranks them, or a question with its answers.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import io
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mtf.cli import prompts
from mtf.data.sources.datasets import hub_name
from mtf.data.tasks import t0
from mtf.data.tasks.prompted import SCORE_EVAL, task_name
from mtf.data.tasks.prompts import fetch
from mtf.data.tasks.prompts.templates import cached_archive, fingerprint, load_templates
from tests import small, stores
from tests.sources.hub_server import CONVERTED

TASKS = small.ROOT / "tests" / "tasks" / "golden_mixtures.tsv"
_SDIST = "promptsource-0.2.3"
_WORDS = "this small model reads many words and then learns what follows them in such texts"
# Column → its values in turn; without values, the column has sentences.
_NLI = {"premise": (), "hypothesis": (), "label": range(3)}
_COPA = {"premise": (), "choice1": (), "choice2": (), "label": (0, 1)}
_WINOGRAD = {"sentence": (), "option1": (), "option2": (), "answer": ("1", "2")}
_STORY = {
    "story_id": (),
    **{f"input_sentence_{part}": () for part in (1, 2, 3, 4)},
    **{"sentence_quiz1": (), "sentence_quiz2": (), "answer_right_ending": (1, 2)},
}
_CLASSES = {"text": (), "label": (0, 1)}
_ANSWERS = {"question": (), "answers": ({"text": ["yes"]}, {"text": ["no", "not"]})}
# Dataset → its columns, and Jinja texts of the answer choices and of the targets.
_LABEL = "{{ answer_choices[label] }}"
_COLUMNS: dict[str, tuple[dict[str, Any], str, str]] = {
    "super_glue/cb": (_NLI, "entailment ||| contradiction ||| neutral", _LABEL),
    "super_glue/copa": (_COPA, "{{ choice1 }} ||| {{ choice2 }}", _LABEL),
    "winogrande/winogrande_xl": (
        *(_WINOGRAD, "{{ option1 }} ||| {{ option2 }}", "{{ answer_choices[answer | int - 1] }}"),
    ),
    "story_cloze/2016": (
        *(_STORY, "{{ sentence_quiz1 }} ||| {{ sentence_quiz2 }}"),
        "{{ answer_choices[answer_right_ending - 1] }}",
    ),
    "trec": (
        {"text": (), "coarse_label": range(6), "fine_label": range(50)},
        *("DESC ||| ENTY ||| ABBR ||| HUM ||| NUM ||| LOC", "{{ answer_choices[label_coarse] }}"),
    ),
    **dict.fromkeys(
        ("anli", "multi_nli", "xnli/en"), (_NLI, "entailment ||| neutral ||| contradiction", _LABEL)
    ),
}
# Not ranked by T0, but with answer choices; mixtures leave them out by their names.
_CHOICES = ("paws/labeled_final", "dream", "amazon_polarity", "imdb", "dbpedia_14")
# Datasets whose templates are more than those of T0's mixtures.
_NUM_TEMPLATES = {"story_cloze/2016": 6, "xnli/en": 15}
_SPLITS = {
    "anli": tuple(f"{part}_r{k}" for part in ("train", "dev", "test") for k in (1, 2, 3)),
    "xwinograd": ("test",),
    "app_reviews": ("train",),
    **dict.fromkeys(("ag_news", "amazon_polarity", "imdb", "trec"), ("train", "test")),
}
# Repositories of a loading script, with which the hub has made Parquet files.
_SCRIPTS = ("piqa", "quoref", "super_glue", "trec", "wiqa", "xstory_cloze", "xwinograd")
# Column of Story Cloze → column of the authors' file.
_STORY_COLUMNS = {
    "story_id": "InputStoryid",
    **{f"input_sentence_{part}": f"InputSentence{part}" for part in (1, 2, 3, 4)},
    "sentence_quiz1": "RandomFifthSentenceQuiz1",
    "sentence_quiz2": "RandomFifthSentenceQuiz2",
    "answer_right_ending": "AnswerRightEnding",
}


@functools.cache
def _tasks() -> dict[str, str]:
    """Returns a dict from T0's tasks to the mixtures that have them."""
    with TASKS.open(newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["task"]: row["mixtures"] for row in reader}


def _tasks_of(row: t0.DatasetRow) -> dict[str, str]:
    prefix = task_name(row.name, row.subset, "")
    return {task: mixtures for task, mixtures in _tasks().items() if task.startswith(prefix)}


@functools.cache
def _made(key: str) -> tuple[dict[str, Any], str | None, str]:
    """Returns the columns of a dataset, and Jinja texts of the choices and of the targets."""
    row = next(row for row in t0.datasets() if row.key == key)
    if key in _COLUMNS:
        return _COLUMNS[key]
    if key in _CHOICES or any(task.endswith(SCORE_EVAL) for task in _tasks_of(row)):
        return _CLASSES, "neg ||| pos", _LABEL
    return _ANSWERS, None, "{{ answers.text[0] }}"


def _rows(key: str, number: int) -> list[dict[str, Any]]:
    def value(column: str, values: Any, index: int) -> Any:
        if values:
            return values[index % len(values)]
        words = random.Random(f"{column} {index}").choices(_WORDS.split(), k=6)
        return f"{' '.join(words).capitalize()} {column.replace('_', ' ')} {index}."

    columns = _made(key)[0]
    return [{name: value(name, columns[name], i) for name in columns} for i in range(number)]


def _write(key: str, file: Path, number: int = 6) -> None:
    """Writes records to a Parquet file, as `datasets` does."""
    import datasets

    file.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(_rows(key, number)).to_parquet(file)


def write_hub(folder: Path) -> dict[str, Path]:
    """Writes the repositories; returns their folders, by name.

    A repository has Parquet files and a README.md that lists them, or a loading script and, on
    another branch, the Parquet files that the hub made with it.
    """
    subsets = [(row.name, row.subset, row.key) for row in t0.datasets() if any(row.fingerprints)]
    for group, languages in t0.LANGUAGES.items():
        (key,) = (row.key for row in t0.select(group))
        subsets += [(group.lower(), language, key) for language in languages.split()]
    repositories: dict[str, Path] = {}
    lists: dict[Path, list[str]] = {}
    for name, subset, key in dict.fromkeys(subsets):
        if name == "story_cloze":
            continue
        repository = hub_name(name)
        repositories[repository] = folder / repository
        splits = _SPLITS.get(name, ("train", "validation", "test"))
        if name in _SCRIPTS:
            branch = f"{repository}@{CONVERTED}"
            repositories[branch] = folder / branch
            (folder / repository).mkdir(parents=True, exist_ok=True)
            (folder / repository / f"{name}.py").write_text("# a loading script\n")
            for split in splits:
                _write(key, folder / branch / (subset or "default") / split / "0000.parquet")
            continue
        lines = lists.setdefault(folder / repository / "README.md", ["---", "configs:"])
        lines += [f"- config_name: '{subset or 'default'}'", "  data_files:"]
        for split in splits:
            lines += [f"  - split: {split}", f"    path: {subset or 'data'}/{split}-*"]
            file = f"{subset or 'data'}/{split}-00000-of-00001.parquet"
            _write(key, folder / repository / file)
    for file, lines in lists.items():
        file.write_text("\n".join([*lines, "---", ""]))
    return repositories


def write_mirror(folder: Path, keys: str, num_rows: int) -> Path:
    """Writes `DATASET[/SUBSET]/SPLIT.parquet` of the named datasets; returns the folder."""
    for key in keys.split():
        for split in ("train", "validation"):
            _write(key, folder / key / f"{split}.parquet", num_rows)
    return folder


def write_story_cloze(folder: Path) -> None:
    """Writes the file that its authors send to where docs/tasks.md says."""
    file = folder / "story_cloze" / "2016" / "validation.csv"
    file.parent.mkdir(parents=True)
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, _STORY_COLUMNS.values())
        writer.writeheader()
        for row in _rows("story_cloze/2016", 4):
            writer.writerow({there: row[here] for here, there in _STORY_COLUMNS.items()})


def write_sdist(folder: Path) -> Path:
    """Writes an sdist like promptsource's with templates of our own."""
    files = {
        f"promptsource/templates/{key}/templates.yaml": text.encode()
        for key, text in stand_ins().items()
    }
    files["PKG-INFO"] = b"Metadata-Version: 2.1\nName: promptsource\nVersion: 0.2.3\n"
    files["setup.py"] = b"raise SystemExit('was run')\n"
    sdist = folder / f"{_SDIST}.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{_SDIST}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return sdist


def stand_ins() -> dict[str, str]:
    """Returns files of templates of our own, as many as promptsource has, by dataset."""
    return {row.key: _templates(row) for row in t0.datasets() if any(row.fingerprints)}


def _templates(row: t0.DatasetRow) -> str:
    """Returns a file of templates with the names of promptsource's."""
    columns, choices, target = _made(row.key)
    texts = [name for name, values in columns.items() if not values]
    inputs = " ".join(f"{name}: {{{{ {name} }}}}" for name in texts)
    tasks = _tasks_of(row)
    ranks_some = any(task.endswith(SCORE_EVAL) for task in tasks)
    lines = [f"dataset: {row.key}", "templates:"]
    for index, (name, found) in enumerate(_names(row, tasks).items()):
        is_ranked = any(task.endswith(SCORE_EVAL) for task in found)
        is_original = is_ranked or any("all_og" in tasks[task] for task in found)
        has_choices = choices is not None and (is_ranked or not (is_original and ranks_some))
        fields = {
            "name": name,
            "jinja": f"{index} {inputs} ||| "
            + (f"{{{{ {texts[0]} }}}}" if choices and not has_choices else target),
            "answer_choices": choices if has_choices else None,
        }
        lines.append(f"  {index}: !Template")
        lines += [f"    {field}: {json.dumps(value)}" for field, value in fields.items()]
        lines += ["    metadata: !TemplateMetadata", '      metrics: ["Accuracy"]']
        lines.append(f"      original_task: {json.dumps(is_original)}")
    return "\n".join([*lines, ""])


def _names(row: t0.DatasetRow, tasks: dict[str, str]) -> dict[str, list[str]]:
    """Returns a dict from the names of templates to T0's tasks with them."""
    prefix, names = task_name(row.name, row.subset, ""), dict[str, list[str]]()
    for task in tasks:
        name = task.removeprefix(prefix).removesuffix(SCORE_EVAL)
        names.setdefault(name.rpartition("_")[0] if row.key == "anli" else name, []).append(task)
    for name in (name for group, name in t0.mt0_prompts() if group == row.groups[-1]):
        # Tasks have simpler names.
        names[name] = names.pop(task_name(row.name, row.subset, name).removeprefix(prefix), [])
    missing = range(len(names), _NUM_TEMPLATES.get(row.key, 1))
    return {**names, **{f"Prompt {index}": [] for index in missing}}


def fetch_templates(folder: Path) -> Path:
    """Returns promptsource's sdist, which `mtf prompts fetch` has downloaded from an index."""
    page = folder / "index" / "simple" / "promptsource" / "index.html"
    page.parent.mkdir(parents=True)
    sdist = write_sdist(page.parent)
    page.write_text(f'<!DOCTYPE html><a href="{sdist.name}">{sdist.name}</a>')
    checksum = hashlib.sha256(sdist.read_bytes()).hexdigest()
    with pytest.MonkeyPatch.context() as patch, stores.http_files(folder / "index") as address:
        patch.setattr(fetch, "SDIST_SHA256", checksum)
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", f"{address}/simple/")
        patch.setenv("MTF_CACHE", str(folder / "fetched"))
        assert prompts.main(["fetch"]) == 0
        return cached_archive()


def accept(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `mtf` expect the hashes of the templates in an archive."""
    rows = _accepting(archive)
    monkeypatch.setattr(t0, "datasets", lambda: rows)


@functools.cache
def _accepting(archive: Path) -> tuple[t0.DatasetRow, ...]:
    templates = load_templates(archive)

    def changed(row: t0.DatasetRow) -> t0.DatasetRow:
        if row.key not in templates.datasets:
            return row
        found = fingerprint(templates.get(row.name, row.subset))
        return dataclasses.replace(row, fingerprints=(found, found))

    return tuple(map(changed, t0.datasets()))
