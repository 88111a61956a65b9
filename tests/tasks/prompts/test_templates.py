"""Reading templates from directories and archives."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.data.tasks.prompts import templates as module
from mtf.data.tasks.prompts.templates import Template, Templates, fingerprint, load_templates
from tests.tasks.prompts.helpers import YAML, write_archive, write_tree

EXPECTED = (
    Template(
        name="which is it",
        jinja="Is {{ thing }} a fruit? ||| {{ answer_choices[label] }}",
        answer_choices="no ||| yes",
        original_task=True,
        metrics=("Accuracy", "Other"),
    ),
    Template(name="describe", jinja="Describe: {{ thing }} ||| {{ text }}"),
)


def made_of(text: str) -> Templates:
    return Templates("ours", {"fruit": text.encode()})


@pytest.fixture(autouse=True)
def no_templates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MTF_PROMPTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("below", ["", "templates", "promptsource/templates"])
def test_a_directory(tmp_path: Path, below: str) -> None:
    write_tree(tmp_path / "it" / below, {"fruit": YAML, "food/fruit": YAML})
    found = load_templates(tmp_path / "it")
    assert found.datasets == ("food/fruit", "fruit")
    assert found.get("fruit") == found.get("food", "fruit") == found.get("food/fruit") == EXPECTED


@pytest.mark.parametrize("root", ["promptsource-0.2.3/promptsource", "promptsource", "."])
def test_an_archive(tmp_path: Path, root: str) -> None:
    files = {
        f"{root}/templates/fruit/templates.yaml": YAML,
        f"{root}/templates/food/fruit/templates.yaml": YAML,
        f"{root}/templates.py": "raise SystemExit",
        "PKG-INFO": "Version: 0.2.3",
    }
    found = load_templates(write_archive(tmp_path / "it.tar.gz", files))
    assert found.datasets == ("food/fruit", "fruit")
    assert found.get("fruit") == EXPECTED


def test_the_environment_variable_comes_first_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "cache" / "mtf" / "promptsource-0.2.3.tar.gz"
    cached.parent.mkdir(parents=True)
    write_archive(cached, {"promptsource-0.2.3/promptsource/templates/a/templates.yaml": YAML})
    assert module.cached_archive() == cached
    assert load_templates().datasets == ("a",)
    monkeypatch.setenv("MTF_PROMPTS", str(write_tree(tmp_path / "tree", {"b": YAML})))
    assert load_templates().datasets == ("b",)
    assert load_templates(cached).datasets == ("a",)


def test_no_templates_at_all() -> None:
    message = r"no prompt templates were found.*`python -m mtf prompts fetch`.*0\.2\.3"
    with pytest.raises(UserError, match=message):
        load_templates()
    with pytest.raises(
        UserError, match=r"ours: there are no templates for friut\. Did you mean fr"
    ):
        made_of(YAML).get("friut")


def test_a_source_without_templates_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "prompts", {"fruit": YAML})
    with pytest.raises(UserError, match=r"promts: this path does not exist\. Did you mean prompts"):
        load_templates(tmp_path / "promts")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: no templates were found; expected files templ"):
        load_templates(tmp_path / "empty")
    archive = write_archive(tmp_path / "code.tar.gz", {"promptsource/templates.py": "pass"})
    with pytest.raises(UserError, match=r"code\.tar\.gz: no templates were"):
        load_templates(archive)


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    whole = write_archive(
        tmp_path / "a.tar.gz", {f"templates/{n}/templates.yaml": YAML * 99 for n in "abc"}
    ).read_bytes()
    for content in (b"text", gzip.compress(b"text"), whole[: len(whole) // 2]):
        path = tmp_path / "broken.tar.gz"
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"broken\.tar\.gz: this is not a readable archive"):
            load_templates(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reference: ours", "reference: !!python/object/apply:os.abort []", "could not determine"),
        ("!TemplateMetadata", "!Metadata", r"could not determine a constructor.*'!Metadata'"),
        ("id: 11-bb", "id: [", r"ours: fruit/templates\.yaml is not a valid template file: .*line"),
        ("templates:", "prompts:", "expected a mapping 'templates' at the top level"),
        ("11-bb: !Template\n", "11-bb:\n", "11-bb: expected a value with the YAML tag !Template"),
        ("name: describe", "title: describe", "22-aa: 'name' is missing or not a string"),
    ],
)
def test_a_file_that_is_none_of_templates_is_named(old: str, new: str, message: str) -> None:
    assert old in YAML
    with pytest.raises(UserError, match=message):
        made_of(YAML.replace(old, new)).get("fruit")
    with pytest.raises(UserError, match="is not a valid template file"):
        Templates("ours", {"fruit": b"\xe9"}).get("fruit")


def test_the_fingerprint_follows_what_decides_the_examples() -> None:
    first, second = EXPECTED
    whole = fingerprint(EXPECTED)
    assert whole == fingerprint([second, first])
    same = YAML.replace("id: 11-bb", "id: 33").replace("ours", "theirs").replace("- en", "- ro")
    assert fingerprint(made_of(same).get("fruit")) == whole
    changes: list[Template] = [
        dataclasses.replace(first, name="what is it"),
        dataclasses.replace(first, jinja=first.jinja + " "),
        dataclasses.replace(first, answer_choices="yes ||| no"),
        dataclasses.replace(first, original_task=False),
        dataclasses.replace(first, metrics=("Accuracy",)),
    ]
    others = {fingerprint([changed, second]) for changed in changes}
    assert len(others) == len(changes) and whole not in others
    assert fingerprint([first]) != whole
