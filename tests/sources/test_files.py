"""Local files as records: every format yields the same columns, from any record on."""

from __future__ import annotations

import gc
import gzip
import json
import pickle
import resource
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtf.base.errors import UserError
from mtf.data.sources.files import keep, open_files

ROWS = [{"a": f"é{i}", "b": "x" * i} for i in range(1, 6)]


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    path, lines = folder / name, [json.dumps(row, ensure_ascii=False) for row in rows]
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
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
    rows = open_files(str(write(tmp_path, name, ROWS)))
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


def test_a_pattern_joins_its_files_in_order(tmp_path: Path) -> None:
    write(tmp_path, "b.jsonl", ROWS[2:])
    write(tmp_path, "a.parquet", ROWS[:2])
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
        ("x.csv", "n\n1\n", "unknown suffix; expected one of .parquet"),
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
