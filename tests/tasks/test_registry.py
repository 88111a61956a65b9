"""Custom tasks: the examples that they yield, and a message for every mistake."""

from __future__ import annotations

import functools
import json
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.cli.cache import main as cache_main
from mtf.cli.data import main as data_main
from mtf.data import tasks
from mtf.data.tasks import registry
from mtf.data.tasks.mixtures import mixture
from mtf.data.tasks.prompted import PromptedTask
from mtf.data.tasks.prompts import render
from mtf.data.tasks.task import Task
from mtf.data.tasks.text import text_tasks
from mtf.data.tasks.translation import translation_tasks
from tests.data.helpers import write_parquet
from tests.tasks.prompts.helpers import template

MODULE = """
from mtf.data import tasks

WORDS = ("no", "yes")


def ask(row):
    number = int(row["n"])
    if number == 3:
        return None
    return {"inputs": f"{number} is even?", "targets": WORDS[number % 2 == 0]}


files = tasks.FileSource({"train": "numbers.jsonl", "validation": "held_*.tsv"})
tasks.register("numbers", files, ask, metrics=["accuracy", "f1"], answer_choices=WORDS)
tasks.register(
    "twice",
    tasks.HubSource("counted", "small"),
    lambda row: [{"inputs": f"{k} {row['n']}", "targets": "x"} for k in (1, 2)],
    inputs_add_eos=False,
)
tasks.register_mixture("numbers_mixture", {"numbers": 3, "twice": 0.5})
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Gives each test an empty registry, and removes the modules that it imports."""
    monkeypatch.setattr(registry, "_REGISTRY", type(registry._REGISTRY)())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("custom"):
            del sys.modules[name]


def write_files(root: Path) -> None:
    (root / "custom.py").write_text(MODULE)
    lines = [json.dumps({"n": n}) for n in range(5)]
    (root / "numbers.jsonl").write_text("\n".join([*lines[:2], "", *lines[2:]]))
    (root / "held_a.tsv").write_text("n\tother\n7\tx\n")
    write_parquet(root / "mirror/counted/small/train.parquet", [{"n": n} for n in range(2)])


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def row_refusal(to_text: Any, row: dict[str, Any], **fields: Any) -> str:
    tasks.register("asked", tasks.HubSource("some"), to_text, **fields)
    return refusal(mixture("asked").tasks[0][0].row_examples, row, 7, "train")


def test_a_registered_task_and_a_mixture_are_found_by_name(tmp_path: Path) -> None:
    write_files(tmp_path)
    registry.import_module("custom")
    made = mixture("numbers_mixture")
    assert [(task.name, rate) for task, rate in made.tasks] == [("numbers", 3), ("twice", 0.5)]
    numbers, twice = (task for task, _ in made.tasks)
    assert numbers.row_examples({"n": 4}, 4, "train") == [
        {"inputs": "4 is even?", "targets": "yes"}
    ]
    assert numbers.row_examples({"n": 3}, 3, "train") == []
    assert [e["inputs"] for e in twice.row_examples({"n": 5}, 0, "train")] == ["1 5", "2 5"]
    assert (numbers.inputs_add_eos, twice.inputs_add_eos) == (True, False)
    assert numbers.metrics == ("accuracy", "f1")
    assert [numbers.postprocess(text) for text in ("no", " yes", "maybe")] == [0, 1, -1]
    ((ranked, _),) = mixture("numbers_score_eval").tasks
    found = ranked.row_examples({"n": 4}, 4, "validation")
    assert [(e["targets"], e["idx"], e["is_correct"]) for e in found] == [
        ("no", [4, 0], False),
        ("yes", [4, 1], True),
    ]


def test_an_unknown_task_points_to_the_module_only_if_none_was_imported(tmp_path: Path) -> None:
    write_files(tmp_path)
    assert "Custom tasks need --module/data.module." in refusal(mixture, "numbers")
    registry.import_module("custom")
    message = refusal(mixture, "nunbers")
    assert "Did you mean numbers" in message
    assert "data.module" not in message


def test_the_commands_cache_and_show_a_users_mixture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path)
    options = ["--module", "custom", "--vocabulary", "byt5"]
    more = ["--output", "cache", "--data-dir", "mirror", "--num-workers", "1"]
    assert cache_main(["numbers_mixture", *options, *more]) == 0
    stored = json.loads(Path("cache/mixtures/numbers_mixture.json").read_text())
    assert stored["tasks"] == {"numbers": 3, "twice": 0.5}
    info = json.loads(Path("cache/numbers/info.json").read_text())
    assert info["metrics"] == ["accuracy", "f1"]
    numbers = {name: (s["num_rows"], s["num_examples"]) for name, s in info["splits"].items()}
    assert numbers == {"train": (5, 4), "validation": (1, 1)}  # record 3 is left out
    capsys.readouterr()
    assert data_main(["--list", *options[:2]]) == 0
    listed = capsys.readouterr().out.split()
    assert listed[:4] == ["numbers", "twice", "numbers_score_eval", "numbers_mixture"]


def test_a_registered_task_reaches_another_process_by_name(tmp_path: Path) -> None:
    write_files(tmp_path)
    registry.import_module("custom")
    twice = mixture("twice").tasks[0][0]
    again = pickle.loads(pickle.dumps(twice))  # its function is a lambda
    assert again.fingerprint == twice.fingerprint


def test_a_changed_function_or_file_changes_the_fingerprint() -> None:
    def one(row: Any) -> Any:
        return {"inputs": row["x"], "targets": "a"}

    def two(row: Any) -> Any:
        return {"inputs": row["x"], "targets": "b"}

    source = tasks.HubSource("some")
    tasks.register("first", source, one)
    tasks.register("second", source, two)
    tasks.register("third", tasks.HubSource("some", splits={"train": "test"}), one)
    tasks.register("fourth", source, one)
    found = [mixture(name).fingerprint for name in ("first", "second", "third", "fourth")]
    assert len(set(found)) == 3
    assert found[0] == found[3]


def test_what_a_function_uses_is_part_of_its_fingerprint() -> None:
    def made(prefix: str, suffix: str) -> str:
        def end(text: str) -> str:
            return text + suffix

        def to_text(row: Any) -> Any:
            return {"inputs": prefix + row["x"], "targets": end(row["x"])}

        return registry.definition(to_text)

    found = [made("a", "b"), made("c", "b"), made("a", "c"), made("a", "b")]
    assert len(set(found)) == 3
    assert found[0] == found[3]


def test_what_a_decorator_of_another_package_keeps_is_not_part_of_the_fingerprint() -> None:
    """gin's decorator, which T5's tasks use, refers to the bindings that it has seen."""
    library: dict[str, Any] = {"__name__": "library.decorators", "wraps": functools.wraps}
    exec(
        "SEEN = {}\n"
        "def remembering(function):\n"
        "    @wraps(function)\n"
        "    def wrapper(row):\n"
        "        SEEN[function.__name__] = True\n"
        "        return function(row)\n"
        "    return wrapper\n",
        library,
    )
    suffix = "?"

    @library["remembering"]
    def to_text(row: Any) -> Any:
        return {"inputs": row["x"], "targets": row["x"] + suffix}

    before = registry.definition(to_text)
    assert to_text({"x": "a"}) == {"inputs": "a", "targets": "a?"} and library["SEEN"]
    assert registry.definition(to_text) == before
    assert "suffix = '?'" in before


@pytest.mark.parametrize(
    ("to_text", "fields", "expected"),
    [
        (lambda row: {"targets": "a"}, {}, "returned no 'inputs' (only 'targets') for record 7"),
        (lambda row: {}, {}, "returned no 'inputs' (only nothing)"),
        (lambda row: "text", {}, "returned a str"),
        (lambda row: [1], {}, "returned a int"),
        (lambda row: {"inputs": "a", "targets": 3}, {}, "returned 'targets' as int"),
        (lambda row: {"inputs": " ", "targets": "a"}, {}, "returned empty 'inputs'"),
        (
            lambda row: {"inputs": "a", "targets": "maybe"},
            {"answer_choices": ["no", "yes"]},
            "'maybe'; expected one of answer_choices ('no', 'yes')",
        ),
        (lambda row: {"inputs": row["y"], "targets": "a"}, {}, "KeyError: 'y'"),
    ],
)
def test_what_a_function_must_return(to_text: Any, fields: Any, expected: str) -> None:
    message = row_refusal(to_text, {"x": "1"}, **fields)
    assert message.startswith("task asked")
    assert expected in message
    if "KeyError" in expected:
        assert "test_registry.py:" in message
        assert "the record's columns are x" in message


def test_names_that_cannot_be_registered() -> None:
    source = tasks.HubSource("some")
    tasks.register("here", source, str)
    assert "here is registered twice, by tests.tasks.test_registry" in refusal(
        tasks.register, "here", source, str
    )
    assert "registered twice" in refusal(tasks.register_mixture, "here", ["here"])
    assert "not a valid name" in refusal(tasks.register, "a/b", source, str)
    assert "expected a list: ['bleu']" in refusal(
        tasks.register, "other", source, str, metrics="bleu"
    )


def test_mixtures_that_cannot_be_made() -> None:
    source = tasks.HubSource("some")
    tasks.register("here", source, str)
    assert "the rate of here must be positive, not -1" in refusal(
        tasks.register_mixture, "bad", {"here": -1}
    )
    assert "no tasks" in refusal(tasks.register_mixture, "bad", [])
    tasks.register_mixture("wrong", ["her"])
    message = refusal(mixture, "wrong")
    assert message.startswith("mixture wrong: there is no mixture")
    assert "here" in message
    tasks.register_mixture("inner", {"here": 5})
    tasks.register_mixture("outer", ["inner"])
    assert mixture("outer").tasks[0][1] == 5
    tasks.register_mixture("rated", {"inner": 2})
    assert "its rate must be None, not 2" in refusal(mixture, "rated")
    tasks.register_mixture("double", ["inner", "here"])
    assert "contains the task here twice" in refusal(mixture, "double")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("custom_missing", None, "--module: there is no module custom_missing"),
        (
            "custom_tasks.py",
            "",
            "custom_tasks.py is a file; expected the name of a module: custom_tasks",
        ),
        ("custom-tasks", "", "'custom-tasks' is not a module name"),
        ("custom_fails", "x = 1\ny = x.z\n", "AttributeError: 'int' object has no attribute 'z'"),
        ("custom_other", "import custom_absent\n", "No module named 'custom_absent'"),
        (
            "custom_twice",
            "from mtf.data import tasks\nfor _ in 1, 2:\n"
            "    tasks.register('a', tasks.HubSource('b'), str)\n",
            "--module: importing custom_twice failed: a is registered twice, by custom_twice",
        ),
    ],
)
def test_modules_that_cannot_be_imported(
    name: str, content: str | None, expected: str, tmp_path: Path, capsys: Any
) -> None:
    if content is not None:
        (tmp_path / f"{name.removesuffix('.py')}.py").write_text(content)
    assert cache_main(["a", "--module", name, "--output", "cache"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert expected in message
    assert "mtf/config/lookup.py" not in message
    assert not Path("cache").exists()


FRUIT = template("Is {{ x }} a fruit? ||| {{ answer_choices[label] }}", "no ||| yes")
PROMPTED = PromptedTask(name="food_fruit", dataset="food", subset=None, template=FRUIT)
TASKS: list[tuple[Task, dict[str, Any]]] = [
    (PROMPTED, {"x": "an apple", "label": 1}),
    (PROMPTED.score_eval(), {"x": "an apple", "label": 1}),
    (text_tasks()["mc4.ro"], {"text": "Un măr."}),
    (translation_tasks()["opus100_en_ro_mt"], {"translation": {"en": "apple", "ro": "măr"}}),
]


@pytest.mark.parametrize(("task", "row"), TASKS, ids=[task.name for task, _ in TASKS])
def test_fingerprints_follow_the_dataset_and_eos(task: Task, row: dict[str, Any]) -> None:
    changed = [
        replace(task, dataset="other"),
        replace(task, subset="other"),
        replace(task, inputs_add_eos=not task.inputs_add_eos),
        replace(task, splits={"train": "other"}),
    ]
    assert len({task.fingerprint, *(other.fingerprint for other in changed)}) == 5


def test_the_fingerprint_of_a_prompted_task_follows_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = [
        replace(PROMPTED, template=replace(FRUIT, jinja=FRUIT.jinja + ".")),
        replace(PROMPTED, template=replace(FRUIT, answer_choices="nein ||| ja")),
        # Random choices of a template depend on the task's name.
        replace(PROMPTED, name="other"),
        PROMPTED.score_eval(),
    ]
    fingerprints = {PROMPTED.fingerprint, *(task.fingerprint for task in changed)}
    assert len(fingerprints) == 5
    monkeypatch.setattr(render, "RENDERING_VERSION", render.RENDERING_VERSION + 1)
    assert PROMPTED.fingerprint not in fingerprints
