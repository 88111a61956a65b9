"""The rules of rendering, one by one, on made-up templates."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from mtf.base.errors import UserError
from mtf.data.tasks.prompts.render import Rendered, fixed_answer_choices, render
from tests.tasks.prompts.helpers import template


def text(jinja: str, choices: str | None = None, key: str = "0", **row: object) -> str | None:
    """Returns the inputs."""
    rendered = render(template(jinja, choices), row, key)
    return rendered and rendered.inputs


def test_the_separator_divides_inputs_from_targets_and_both_are_stripped() -> None:
    jinja = "\n Is {{ a_b }} so? \n|||\n {{ b }} "
    assert render(template(jinja), {"a-b": "it", "b": 3}, "0") == Rendered("Is it so?", "3", None)


def test_what_is_undefined_is_empty_and_nothing_is_escaped() -> None:
    assert text("[{{ nothing }}] {{ tags }} ||| x", tags="<b> & \"'") == "[] <b> & \"'"


def test_zip_and_the_filters() -> None:
    assert text(
        "{% for a, b in zip(x, y) %}{{ a }}{{ b }}{% endfor %} ||| z", x="ab", y=[1, 2]
    ) == ("a1b2")
    assert text("{{ x | most_frequent | join('/') }} ||| z", x=["b", "a", "a", "c", "b"]) == "b/a"
    assert text("[{{ x | most_frequent }}] ||| z", x=[]) == "[None]"
    assert text("{{ x | highlight }} ||| z", x="it") == "<span style='color: #F08080'>it</span>"


def test_variables_are_truncated_between_words() -> None:
    long = "word " * 500
    assert text("{{ x }} ||| z", x=long) == ("word " * 409).strip() + "..."
    # Up to five characters over the length are let pass.
    assert text("{{ x }} ||| z", x="y" * 2053) == "y" * 2053
    assert text("{{ x }} ||| z", x="y" * 2054) == "y" * 2045 + "..."
    # Numbers become text first.
    assert text("{{ x }} {{ y }} {{ z }} ||| .", x=1.5, y=[1, "a"], z=None) == "1.5 [1, 'a'] None"
    # Each variable by itself, targets too; other text is as long as it likes.
    rendered = render(
        template("{{ x }}{{ x }}" + "t" * 3000 + "|||{{ x }}"), {"x": "y" * 3000}, "0"
    )
    assert rendered is not None
    assert len(rendered.inputs) == 2 * 2048 + 3000 and len(rendered.targets) == 2048


def test_what_is_added_takes_only_the_last_operand() -> None:
    # It is text that is put before the closing braces, with Jinja's precedence.
    assert text("{{ x + y }} ||| z", x="a", y=1) == "a1"


def test_answer_choices_are_not_truncated() -> None:
    rendered = render(
        template("{{ answer_choices | length }} ||| b", "{{ x }} ||| b"), {"x": "y" * 3000}, "0"
    )
    assert rendered == ("2", "b", ("y" * 3000, "b"))


def test_answer_choices_are_rendered_split_and_stripped_first() -> None:
    jinja = "{{ answer_choices | join('; ') }} ||| {{ answer_choices[label] }}"
    rendered = render(template(jinja, " {{ a }} ||| two\n||| 3 "), {"a": "one", "label": 2}, "0")
    assert rendered == ("one; two; 3", "3", ("one", "two", "3"))
    assert render(template("{{ answer_choices }} ||| x"), {}, "0") == ("None", "x", None)


def test_a_template_can_split_the_documents_of_multi_news() -> None:
    # Documents are separated by five bars, of which promptsource replaces three by this text.
    jinja = "{{ document.split('3ed2dface8203c4c9dfb1a5dc58e41e0||') | join('; ') }} ||| x"
    assert text(jinja, document="one | two|||||three") == "one | two; three"


def test_a_separator_in_the_data_separates_nothing() -> None:
    jinja = "{{ a }} ||| {{ b }}"
    assert render(template(jinja, "{{ a }} ||| c"), {"a": "x|||y", "b": "|||"}, "0") == (
        "x|||y",
        "|||",
        ("x|||y", "c"),
    )
    # Only in columns of text: one in a list divides, and three parts are no example.
    assert render(template("{{ a[0] }} ||| b"), {"a": ["x|||y"]}, "0") is None


@pytest.mark.parametrize("jinja", ["", "{% if a %}x ||| y{% endif %}", "x", "x ||| y ||| z"])
def test_without_two_parts_there_is_no_example(jinja: str) -> None:
    assert render(template(jinja), {"a": 0}, "0") is None


def test_without_inputs_there_is_no_example_and_without_targets_no_label() -> None:
    assert render(template("{{ a }} ||| b"), {"a": " "}, "0") is None
    assert render(template("a ||| {{ b }}"), {"b": ""}, "0") == ("a", "<NO LABEL>", None)


@pytest.mark.parametrize(
    "choice", ["['a', 'b', 'c'] | choice", "x | choice", "('a', 'b', 'c') | random"]
)
def test_random_choices_are_a_function_of_the_key(choice: str) -> None:
    jinja = f"{{{{ {choice} }}}} {{% set y = {choice} %}}{{{{ y }}}} ||| z"
    drawn = [text(jinja, key=str(i), x="abc") for i in range(900)]
    assert [text(jinja, key=str(i), x="abc") for i in range(900)] == drawn
    counts = Counter(drawn)
    # Two independent draws from three: 9 pairs of 100 each, with a deviation of 9.4.
    assert len(counts) == 9 and all(60 < count < 140 for count in counts.values())


def test_random_choices_go_on_from_answer_choices_to_the_body() -> None:
    made = template(
        "{{ ['a', 'b'] | choice }} ||| {{ answer_choices[0] }}", "{{ x | choice }} ||| n"
    )
    drawn = [render(made, {"x": "ab"}, str(i)) for i in range(400)]
    pairs = Counter((d.inputs, d.targets) for d in drawn if d)
    assert len(pairs) == 4 and min(pairs.values()) > 60
    assert all(d and d.answer_choices == (d.targets, "n") for d in drawn)


def test_fixed_answer_choices() -> None:
    assert fixed_answer_choices(template("x ||| y", " no |||yes")) == ("no", "yes")
    assert fixed_answer_choices(template("x ||| y", "{{ 1 + 1 }} ||| {{ a }}")) is None
    assert fixed_answer_choices(template("x ||| y", "{{ 1 + 1 }} ||| b")) == ("2", "b")
    assert fixed_answer_choices(template("x ||| y")) is None


@pytest.mark.parametrize(
    ("jinja", "message"),
    [
        ("{{ a }", r"prompt 'made up' is not valid Jinja: line 1: "),
        ("x\n{% if %} ||| y", r"is not valid Jinja: line 2: "),
        ("{{ a | nofilter }} ||| y", r"is not valid Jinja: line 1: No filter named 'nofilter'"),
        (
            "{{ nothing.at.all }} ||| y",
            r"cannot be applied to record 7 .*: UndefinedError: .*nothing",
        ),
        ("{{ (a + 1) }} ||| y", r"record 7 .*: TypeError: .*the record's columns are a, b-c$"),
        ("{{ a[0].__class__.__mro__ }} ||| y", "record 7 .*: SecurityError"),
        (
            "{{ [] | choice }} ||| y",
            "record 7 .*: LookupError: cannot choose at random from an empty sequence",
        ),
    ],
)
def test_a_template_that_fails_is_named(jinja: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        render(template(jinja), {"a": "text", "b-c": 1}, "7")


def test_a_column_called_answer_choices_is_refused() -> None:
    with pytest.raises(UserError, match="the dataset has a column answer_choices"):
        render(template("x ||| y"), {"answer-choices": "a"}, "0")


def test_without_jinja_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        UserError, match=r"needs the package jinja2.*pip install 'mtf-jax\[tasks\]'"
    ):
        render(template("never compiled before ||| y"), {}, "0")
