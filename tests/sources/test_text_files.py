"""Reads files of texts and of records, and refuses lines that cannot be used."""

from __future__ import annotations

import csv
import gc
import gzip
import io
import json
import os
import pickle
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtf.base.errors import UserError
from mtf.data.settings import TextFilesConfig
from mtf.data.sources import lines as line_index
from mtf.data.sources.files import Part, in_memory, keep, open_files, part_of
from mtf.data.sources.python_text import python_documents
from mtf.data.sources.text_files import Examples, Pair, open_examples
from tests.data.helpers import BYTES, write, write_parquet

LENGTHS = {"inputs": 32, "targets": 8}


def read(*paths: str, **settings: Any) -> list[str | Pair]:
    examples = opened(*paths, **settings)
    return [examples[i] for i in range(len(examples))]


def opened(*paths: str, **settings: Any) -> Examples:
    data = TextFilesConfig(vocabulary=BYTES, task_feature_lengths=LENGTHS, files=paths, **settings)
    return open_examples(data.patterns or None, allow_empty_targets=data.allow_empty_targets)


def refused(*paths: str, **settings: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        opened(*paths, **settings)
    return str(caught.value).splitlines()


def test_a_line_of_text_is_a_document_and_blank_lines_are_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\ufeffone\n\n  \n two \r\nthrée")
    assert read(path) == ["one", " two ", "thrée"]


def test_json_lines_hold_documents_or_pairs(tmp_path: Path) -> None:
    documents = write(tmp_path / "a.jsonl", '{"text": "one\\ntwo", "id": 3}\n\n{"text": "é"}\n')
    assert read(documents) == ["one\ntwo", "é"]
    pairs = write(tmp_path / "b.jsonl", '{"targets": "b", "inputs": "a"}\n')
    assert read(pairs) == [Pair("a", "b")]


def test_tab_separated_lines_are_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'a b\tc\n\n"x"\ty\r\n \n')
    assert read(path) == [Pair("a b", "c"), Pair('"x"', "y")]


def test_compressed_files_read_the_same(tmp_path: Path) -> None:
    for name, text in (("a.jsonl", '{"text": "one"}\n{"text": "two"}'), ("a.tsv", "one\ttwo\n")):
        plain = write(tmp_path / name, text)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        assert read(f"{plain}.gz") == read(plain)


def test_patterns_and_several_files(tmp_path: Path) -> None:
    for name in ("b1.txt", "b0.txt", "a.txt"):
        write(tmp_path / name, f"{name}\n")
    pattern = str(tmp_path / "b*.txt")
    assert read(pattern, str(tmp_path / "a.txt")) == ["b0.txt", "b1.txt", "a.txt"]
    assert read(str(tmp_path / "b0.txt"), pattern) == ["b0.txt", "b1.txt"]  # each file once


@given(
    lines=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1),
    block=st.sampled_from([1, 7, 1 << 20]),
)
def test_any_text_comes_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block: int
) -> None:
    lines = [line.replace("\n", "").rstrip("\r") for line in lines]
    # Blank is what has nothing but blanks and control characters.
    expected = [line for line in lines if max(line, default="") > " "]
    path = tmp_path_factory.mktemp("any") / "a.txt"
    path.write_bytes("\n".join(["first", *lines]).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_index, "_BLOCK_BYTES", block)
        assert read(str(path)) == ["first", *expected]


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    first = opened(write(tmp_path / "a.txt", "one\ntwo\n")).fingerprint
    assert opened(write(tmp_path / "b.txt", "one\ntwo\n")).fingerprint == first
    assert opened(write(tmp_path / "c.txt", "one\nTwo\n")).fingerprint != first


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n")
    assert read(path) == ["one"]
    write(tmp_path / "a.txt", "two\n")
    os.utime(path, ns=(1, 1))
    assert read(path) == ["two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt is empty"),
        ("a.txt", b"\n \n\n", r"a\.txt is empty"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), r"a\.txt\.gz is empty"),
        ("a.txt.gz", b"plain text", r"a\.txt\.gz cannot be read: Not a gzipped file"),
        (
            "a.txt.gz",
            gzip.compress(b"some text " * 99, mtime=0)[:-20],
            r"a\.txt\.gz cannot be read: ",
        ),
        ("a.txt", b"one\nt\xe9l\n", r"a\.txt:2: not UTF-8: byte 2 of the line is 0xe9"),
        ("a.xls", b"one,two\n", r"a\.xls has an unknown suffix; expected one of \.txt "),
        ("a.csv", b"a,b\nc,d\n", r"a\.csv:2: 'text' is missing; found 'a', 'b'; expected"),
        ("a.csv", b'text\none\n"two\nthree\n', r"a\.csv:3: not valid CSV: unexpected end of data"),
        ("a.csv", b"text\none\nt\xe9l\n", r"a\.csv:3: not UTF-8: byte 2 of the line is 0xe9"),
        ("a.tsv", b"a\tb\tc\n", r"a\.tsv:1: expected 2 columns .*, not 3"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not valid JSON: .* at column 10"),
        ("a.jsonl", b'["a"]\n', r"a\.jsonl:1: not a JSON object; expected .*text"),
        ("a.jsonl", b'{"txt": "a"}\n', r"a\.jsonl:1: 'text' is missing; found 'txt'; expected"),
        ("a.jsonl", b'{"inputs": "a"}\n', r"a\.jsonl:1: 'targets' is missing; found 'inputs'"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"inputs": "a", "targets": "b"}\n',
            r"a\.jsonl:2: this is a pair, but the file's first line is a document",
        ),
    ],
)
def test_unreadable_files_are_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        opened(str(tmp_path / name))


def test_a_missing_file_is_named_with_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "corpus.txt", "text\n")
    with pytest.raises(UserError, match=r"corpsu\.txt does not exist\. Did you mean corpus\.txt"):
        opened(str(tmp_path / "corpsu.txt"))
    with pytest.raises(UserError, match="nor does the folder"):
        opened(str(tmp_path / "nowhere" / "corpus.txt"))
    with pytest.raises(UserError, match=r"no file matches .*\*\.tsv"):
        opened(str(tmp_path / "*.tsv"))
    with pytest.raises(UserError, match=r"is a directory; expected files, e.g. .*/\*\.txt"):
        opened(str(tmp_path))
    with pytest.raises(UserError, match="unknown scheme; expected a local path or gs://"):
        opened("ftp://bucket/corpus.txt")


def test_documents_and_pairs_do_not_mix(tmp_path: Path) -> None:
    text, pairs = write(tmp_path / "a.txt", "one\n"), write(tmp_path / "b.tsv", "a\tb\n")
    with pytest.raises(UserError, match=r"a\.txt contains documents and .*b\.tsv contains pairs"):
        opened(text, pairs)


def test_empty_targets_are_counted_and_refused_unless_allowed(tmp_path: Path) -> None:
    lines = ["a\tb", "c\t", "", "\t", "d\t \r", "\te", "f\tg"]
    path = write(tmp_path / "a.tsv", "\n".join(lines) + "\n")
    first, *named, advice = refused(path)
    assert first == "data.files: 3 lines cannot be used:"
    assert named == [
        f"  {path}:4: 'inputs' and 'targets' are both empty; expected text",
        f"  {path}:2: 'targets' is empty; expected text",
        f"  {path}:5: 'targets' is empty; expected text",
    ]
    assert advice.startswith("Lines with empty targets: 2. Fill in the targets, ")
    assert "data.allow_empty_targets=True" in advice
    # A line without inputs and targets is not a pair.
    (message,) = refused(path, allow_empty_targets=True)
    assert f"{path}:4: 'inputs' and 'targets'" in message
    lines[3] = ""
    write(tmp_path / "a.tsv", "\n".join(lines) + "\n")
    expected = [("a", "b"), ("c", ""), ("d", " "), ("", "e"), ("f", "g")]
    assert read(path, allow_empty_targets=True) == [Pair(*pair) for pair in expected]


@pytest.mark.parametrize(
    ("name", "good", "bad", "reason"),
    [
        ("a.tsv", b"a\tb", b"c", ": expected 2 columns (inputs, targets), not 1"),
        ("a.jsonl", b'{"text": "a"}', b'{"text": 3}', ": 'text' has type int; expected a string"),
        ("a.txt", b"a", b"\xff", ": not UTF-8: byte 1 of the line is 0xff"),
        ("a.csv", b"inputs,targets", b"a", ": expected the 2 columns of the first line (inputs, "),
        ("a.tsv.gz", b"a\tb", b"c\t\xe9", ": not UTF-8: byte 3 of the line is 0xe9"),
    ],
)
def test_all_bad_lines_are_named_at_once_wherever_they_are(
    tmp_path: Path, name: str, good: bytes, bad: bytes, reason: str
) -> None:
    wrong = [3, *range(1200, 2000, 50)]
    lines = [bad if number in wrong else good for number in range(1, 2001)]
    lines[9] = b""
    content = b"\n".join(lines)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    first, *named, last = refused(str(path))
    assert first == f"data.files: {len(wrong)} lines cannot be used:"
    for number, line in zip(wrong[:10], named, strict=True):
        assert line.startswith(f"  {path}:{number}{reason}")
    assert last == f"  … and {len(wrong) - 10} more"


def test_python_carries_english_text() -> None:
    documents = python_documents()
    assert len(documents) > 3000
    assert sum(map(len, documents)) > 1_000_000
    assert len(set(documents)) == len(documents)
    assert all(document == document.strip() != "" for document in documents)
    # A topic of pydoc and a docstring, read through Python itself.

    import pydoc_data.topics

    assert pydoc_data.topics.topics["assert"].strip() in documents
    assert json.JSONDecoder.decode.__doc__ is not None
    assert any(document.startswith("Simple JSON") for document in documents)


ROWS = [{"a": f"é{i}", "b": "x" * i} for i in range(1, 6)]


def write_table(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    path, lines = folder / name, [json.dumps(row, ensure_ascii=False) for row in rows]
    if name.endswith(".parquet"):
        write_parquet(path, rows, row_group_size=2)
        return path
    if "list" in name:
        text = json.dumps(rows, indent=1)
    elif ".tsv" in name:
        text = "\r\n".join(["a\tb", *(f"{row['a']}\t{row['b']}" for row in rows)])
    else:
        text = "\ufeff" + "\n\n".join(lines)
    content = text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


NAMES = ["x.parquet", "x.jsonl", "x.jsonl.gz", "x.json", "list.json", "list.json.gz", "x.tsv"]


@pytest.mark.parametrize("name", NAMES)
def test_a_format_yields_columns_from_any_record_on(name: str, tmp_path: Path) -> None:
    rows = open_files(str(write_table(tmp_path, name, ROWS)))
    assert len(rows) == 5
    assert list(rows) == ROWS
    assert list(rows.rows(1, 4)) == ROWS[1:4]
    assert list(rows.rows(4, 4)) == []


def test_lines_of_text_are_records(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("one\n\n two \n")
    assert list(open_files(str(tmp_path / "x.txt"))) == [{"text": "one"}, {"text": " two "}]


def test_a_tsv_file_without_a_header(tmp_path: Path) -> None:
    columns, expected = ("inputs", "targets"), [{"inputs": "a", "targets": "b"}]
    (tmp_path / "plain.tsv").write_text("a\tb\n")
    (tmp_path / "header.tsv").write_text("inputs\ttargets\na\tb\n")
    (tmp_path / "wide.tsv").write_text("a\tb\nc\td\te\n")
    for name in ("plain.tsv", "header.tsv"):
        assert list(open_files(str(tmp_path / name), columns)) == expected
    with pytest.raises(UserError, match=r"wide.tsv:2: expected the 2 columns .* \(inputs, "):
        list(open_files(str(tmp_path / "wide.tsv"), columns))


QUOTED = [
    {"inputs": 'He said "no", twice.', "targets": "two\nlines"},
    {"inputs": "", "targets": "é\r\n\r\n, "},
    {"inputs": "x" * 200_000, "targets": "plain"},
]


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_csv_has_a_header_and_quotes(name: str, tmp_path: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["inputs", "targets"])
    writer.writeheader()
    writer.writerows(QUOTED)
    content = f"\ufeff{text.getvalue()}\r\n".replace("\r\nx", "\r\n\r\nx").encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    rows = open_files(str(path), ("inputs", "targets"))
    assert [*rows] == QUOTED
    for start in range(3):
        assert [*rows.rows(start, start + 1)] == QUOTED[start : start + 1]
    assert read(str(path)) == [Pair(**row) for row in QUOTED]


def test_the_parts_of_a_split_are_random_disjoint_and_always_the_same() -> None:
    rows = in_memory([{"n": n} for n in range(1000)])
    held_out, rest = (
        [row["n"] for row in part_of(rows, Part(0.05, is_held_out))]
        for is_held_out in (True, False)
    )
    assert len(held_out) == 50 and sorted(held_out + rest) == [*range(1000)]
    assert held_out == sorted(held_out) and rest == sorted(rest)
    assert 300 < sum(held_out) / 50 < 700
    # A run that is resumed in years, with another NumPy, must find the same records.
    assert held_out[:5] == [0, 38, 43, 54, 66]
    assert [*part_of(rows, Part(0.05, True)).rows(2, 4)] == [{"n": n} for n in held_out[2:4]]
    two = in_memory([{"n": 0}, {"n": 1}])
    assert [len(part_of(two, Part(0.01, is_held_out))) for is_held_out in (True, False)] == [1, 1]
    with pytest.raises(UserError, match="at least 2 records, of which one is held out, not 1"):
        part_of(in_memory([{"n": 0}]), Part(0.5, True))


def test_a_pattern_joins_its_files_in_order(tmp_path: Path) -> None:
    write_table(tmp_path, "b.jsonl", ROWS[2:])
    write_table(tmp_path, "a.parquet", ROWS[:2])
    rows = open_files(str(tmp_path / "?.*"))
    assert len(rows) == 5
    for start in range(6):
        for stop in range(start, 6):
            assert list(rows.rows(start, stop)) == ROWS[start:stop]


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("x.jsonl", '{"n": 1}\n[2]\n', "x.jsonl:2: not a JSON object"),
        ("x.json", '[{"n": 1}, 2]', "item 2 is not a JSON object"),
        ("x.tsv", "n\tm\n1\n", "x.tsv:2: expected the 2 columns of the first line"),
        ("x.csv", "n\n1,2\n", "x.csv:2: expected the 1 columns of the first line"),
        ("x.xls", "n\n1\n", "unknown suffix; expected one of .parquet"),
    ],
)
def test_files_that_cannot_be_read(file: str, content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=expected):
        list(open_files(str(tmp_path / file)))


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    assert list(open_files(str(tmp_path / "x.jsonl"))) == []


def test_kept_records_are_read_anywhere_and_by_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    records = [{"n": n, "text": b"x" * (n % 7)} for n in range(10_000)]
    kept = keep(iter(records), "records")
    copy = pickle.loads(pickle.dumps(kept))
    for start, stop in ((0, 3), (4095, 4098), (8192, 10_000), (9_999, 20_000), (5, 5)):
        assert list(copy.rows(start, stop)) == records[start:stop]
    assert list(kept) == records
    assert len(list(tmp_path.iterdir())) == 1
    del kept
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"^the rows do not fit into .* Set TMPDIR to"):
            keep(({"n": n} for n in range(100_000)), "the rows")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
