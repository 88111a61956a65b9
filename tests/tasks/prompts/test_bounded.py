"""Templates from elsewhere end soon with a message, whatever they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.data.tasks.prompts import bounded
from mtf.data.tasks.prompts.render import render_text
from mtf.data.tasks.prompts.templates import load_templates
from tests.small import python

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
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from tests.tasks.prompts.test_bounded import *\n"
        "for template in HOSTILE:\n"
        "    with pytest.raises(UserError): render_text(template, {'text': 'x' * 1_000_000})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    assert int(python("-c", code).stdout) < 1 << 20


def test_what_templates_may_do() -> None:
    row = {"text": "a b", "words": ["x", "y"], "big": 7_900_000_000}
    for template, text in {
        "{{ text ~ '-' ~ 1 ~ big }}": "a b-17900000000",
        "{{ '%5.1f|%s' % (2.25, text) }}{{ 7 % 4 }}{{ big * 2 }}": "2.2|a b315800000000",
        "{{ '{:,}'.format(big) }}{{ 'ab' * 2 }}{{ 2 ** 10 }}": "7,900,000,000abab1024",
        "{% for w in words %}{{ loop.index }}{{ loop.last }}{% endfor %}": "1False2True",
        "{% for w in words recursive %}{{ w }}{% endfor %}{{ words | join('+') }}": "xyx+y",
        "{{ text.replace('a', 'c') | upper | center(7) }}{{ words | length }}": "C B  2",
        "{% set n = namespace(s=0) %}{% for i in range(9) %}{% set n.s = n.s + i %}{% endfor %}"
        "{{ n.s }}": "36",
    }.items():
        assert render_text(template, row) == text


@pytest.mark.parametrize("content", ["[" * 100_000, "a:\n" + "- " * 100_000, "{a: " * 100_000])
def test_files_that_nest_too_deeply(tmp_path: Path, content: str) -> None:
    file = tmp_path / "templates" / "made" / "templates.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    templates = load_templates(tmp_path)
    with pytest.raises(UserError, match="nested more than 20 levels deep"):
        templates.get("made")
    file.write_text("a: &a {b: 1}\nc: {<<: [*a, *a]}")
    with pytest.raises(UserError, match="it contains <<"):
        load_templates(tmp_path).get("made")
