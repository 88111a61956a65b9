"""Input files, and results of other settings, which are refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.inference.batch import Source, file_sources
from mtf.inference.files import Request, Results


def sources(*patterns: Path) -> list[Source]:
    return file_sources(list(map(str, patterns)), "predict", inputs_add_eos=True)


def read(path: Path, content: str | bytes) -> list[Request]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (source,) = sources(path)
    return list(source.requests())


def test_every_kind_of_file(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    assert read(text, "one\r\n two \nșapte") == [
        Request("one", None, f"{text}:1"),
        Request(" two ", None, f"{text}:2"),
        Request("șapte", None, f"{text}:3"),
    ]
    assert [tuple(r[:2]) for r in read(tmp_path / "b.tsv", "a\tb\nc\n")] == [
        ("a", "b"),
        ("c", None),
    ]
    lines = '\ufeff{"inputs": "a\\nb", "id": 7}\n{"targets": "y", "inputs": "x"}\n'
    assert [tuple(r[:2]) for r in read(tmp_path / "c.jsonl", lines)] == [("a\nb", None), ("x", "y")]
    table = 'id,inputs,targets\n1,"a, ""b""\nc",x\n2,d,e\n'
    assert [tuple(r) for r in read(tmp_path / "e.csv", table)] == [
        ('a, "b"\nc', "x", f"{tmp_path / 'e.csv'}:2", None),
        ("d", "e", f"{tmp_path / 'e.csv'}:4", None),
    ]
    packed = read(tmp_path / "d.txt.gz", gzip.compress(b"one\ntwo\n"))
    assert [request.inputs for request in packed] == ["one", "two"]
    assert [source.name for source in sources(tmp_path / "*")] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "one\n\nthree\n", r"a\.txt:2: the line is blank"),
        ("a.txt", b"one\n\xff\xfe\n", r"a\.txt:2: not UTF-8"),
        ("a.txt.gz", b"no gzip", r"a\.txt\.gz cannot be read"),
        ("a.tsv", "a\tb\nc\td\te\n", r"a\.tsv:2: the line has 3 columns"),
        ("a.tsv", "a\t\n", r"a\.tsv:1: 'targets' is empty"),
        ("a.jsonl", '{"inputs": "a"}\n{"inputs": 3}\n', r"a\.jsonl:2: 'inputs' has type int"),
        (
            "a.jsonl",
            '{"input": "a"}\n',
            r"'inputs' is missing; found 'input'; expected .*\. Did you mean input",
        ),
        ("a.jsonl", '{"inputs": "a"\n', r"a\.jsonl:1: not valid JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1: not a JSON object"),
        ("a.jsonl", '{"inputs": "a", "targets": " "}\n', r"a\.jsonl:1: 'targets' is empty"),
        (
            "a.jsonl",
            '{"inputs": "x \\ud83d"}\n',
            r"a\.jsonl:1: 'inputs' contains half of a surrogate",
        ),
        ("a.xls", "a\n", r"an unknown suffix"),
        ("a.csv", "input\na\n", r"a\.csv:2: 'inputs' is missing; found 'input'"),
        ("a.txt", "", r"a\.txt is empty; expected at least one example"),
    ],
)
def test_wrong_lines_are_named(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / name, content)


def test_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.txt", "a.tsv"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(UserError, match="have the same name, a, and so would their results"):
        sources(tmp_path / "a.*")


DESCRIBED: dict[str, Any] = {"mode": "predict", "batch_size": 2}


def lines(*numbers: int) -> list[dict[str, Any]]:
    return [{"inputs": {"inputs_pretokenized": f"ă{n}"}, "prediction": str(n)} for n in numbers]


def test_results_of_another_run_are_not_mixed(tmp_path: Path) -> None:
    results = Results(tmp_path, "x-predict", DESCRIBED)
    results.write_part(lines(1), 0)
    with pytest.raises(UserError, match="batch_size was 2 and is now 4"):
        Results(tmp_path, "x-predict", {**DESCRIBED, "batch_size": 4})
    results.finish()
    with pytest.raises(UserError, match="batch_size was 2 and is now 4"):
        Results(tmp_path, "x-predict", {**DESCRIBED, "batch_size": 4})


def test_shards_that_were_made_otherwise_are_not_joined(tmp_path: Path) -> None:
    first, second = (
        Results(tmp_path, "x-score", {**DESCRIBED, "step": step}, shard_id=i, num_shards=2)
        for i, step in enumerate((100, 200))
    )
    for results in (first, second):  # started before the other had written anything
        results.write_part(lines(1), 0)
        results.finish()
    with pytest.raises(UserError, match="step was 100 and is now 200"):
        second.merged()
    assert not (tmp_path / "x-score.jsonl").exists()
    with pytest.raises(UserError, match="step was 100 and is now 300"):
        Results(tmp_path, "x-score", {**DESCRIBED, "step": 300}, shard_id=1, num_shards=2)
