"""The rules of rendering, one by one, on made-up templates, and its bounds."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.data.tasks.prompts import bounded
from mtf.data.tasks.prompts.render import Rendered, fixed_answer_choices, render, render_text
from mtf.data.tasks.prompts.templates import load_templates
from tests.small import python
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


_TWICE = "{% set n = namespace(x=START) %}{% for i in range(99) %}{% set n.x = STEP %}{% endfor %}"


def doubled(start: str, step: str) -> str:
    return f"{_TWICE}{{{{ n.x }}}}".replace("START", start).replace("STEP", step)


HOSTILE = [
    "{{ '%999999999s' % 'a' }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999s' | format('a') }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 999999999) }}",
    "{{ '%(a)s%(a)s%(a)s' % {'a': text} }}",
    "{{ 'a' * 999999999 }}",
    "{{ 999999999 * [1] }}",
    "{{ 9 ** 999999999 }}",
    "{{ 5 | round(-999999999) }}",
    "{{ 'a'.ljust(999999999) }}",
    "{{ 'a' | center(999999999) }}",
    "{{ 'a' | indent(width=999999999, first=true) }}",
    "{{ [1] | batch(999999999, 'x') | list }}",
    "{{ [[1]] | tojson(999999999) }}",
    "{{ text.replace('x', text) }}",
    "{{ range(99999) | map('string') | join(text) }}",
    "{{ text.join(range(99999) | map('string')) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(9) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ text }}{% endfor %}{% endset %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    doubled("'a'", "n.x ~ n.x"),
    doubled("'a'", "n.x + n.x"),
    doubled("[1]", "[n.x, n.x]"),
    doubled("[1]", "{'a': [n.x, n.x]}.values()"),
    "{% set l = [1] %}{% for i in range(99) %}{% if l.extend(l) %}{% endif %}{% endfor %}",
]
DEEP = [
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "not " * 100_000 + "1 }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
]


@pytest.mark.parametrize("template", HOSTILE)
def test_templates_that_ask_for_too_much(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.setattr(bounded, "MAX_BYTES", 10**6)
    with pytest.raises(UserError, match="it needs over 100,000,000 bytes or 10 seconds"):
        render_text(template, {"text": "x" * 10_000})


@pytest.mark.parametrize("template", DEEP)
def test_templates_that_nest_too_deeply(template: str) -> None:
    with pytest.raises(UserError, match="is not valid Jinja: it nests too deeply"):
        render_text(template, {})


@pytest.mark.slow
def test_the_bounds_hold() -> None:
    """Everything at once needs less than a gigabyte and few minutes."""
    code = (
        "import re, resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from tests.tasks.prompts.test_render import *\n"
        "for template in HOSTILE:\n"
        "    with pytest.raises(UserError): render_text(template, {'text': 'x' * 1_000_000})\n"
        # `ru_maxrss` may be that of the process that started this one.
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', Path('/proc/self/status').read_text())[1])"
    )
    assert int(python("-c", code).stdout) < 1 << 20


def test_what_templates_may_do() -> None:
    row = {"text": "a b", "words": ["x", "y"], "big": 7_900_000_000}
    for jinja, text in {
        "{{ text ~ '-' ~ 1 ~ big }}": "a b-17900000000",
        "{{ '%5.1f|%s' % (2.25, text) }}{{ 7 % 4 }}{{ big * 2 }}": "2.2|a b315800000000",
        "{{ '{:,}'.format(big) }}{{ 'ab' * 2 }}{{ 2 ** 10 }}": "7,900,000,000abab1024",
        "{% for w in words %}{{ loop.index }}{{ loop.last }}{% endfor %}": "1False2True",
        "{% for w in words recursive %}{{ w }}{% endfor %}{{ words | join('+') }}": "xyx+y",
        "{{ text.replace('a', 'c') | upper | center(7) }}{{ words | length }}": "C B  2",
        "{% set n = namespace(s=0) %}{% for i in range(9) %}{% set n.s = n.s + i %}{% endfor %}"
        "{{ n.s }}": "36",
    }.items():
        assert render_text(jinja, row).strip() == text


@pytest.mark.parametrize("content", ["[" * 100_000, "a:\n" + "- " * 100_000, "{a: " * 100_000])
def test_files_that_nest_too_deeply(tmp_path: Path, content: str) -> None:
    file = tmp_path / "templates" / "made" / "templates.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    templates = load_templates(tmp_path)
    # PyYAML 6.0.4 looks ahead and stops at 1,000 open brackets by itself.
    with pytest.raises(UserError, match=r"more than 20 levels deep|maximum nesting depth"):
        templates.get("made")
    file.write_text("a: &a {b: 1}\nc: {<<: [*a, *a]}")
    with pytest.raises(UserError, match="it contains <<"):
        load_templates(tmp_path).get("made")
