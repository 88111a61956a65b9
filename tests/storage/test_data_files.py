"""Data files in stores are read as local ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mtf.data.sources.files import open_files
from mtf.data.sources.text_files import open_examples
from mtf.storage import copies
from mtf.storage.remote import RemotePath
from tests.storage.conftest import put

TEMPLATES = """\
dataset: toy
templates:
  one: !Template
    id: one
    name: one
    jinja: "{{question}} ||| {{answer}}"
    metadata: !TemplateMetadata
      original_task: true
"""


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A directory with lines, a mirror of a dataset, and templates."""
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path / "data"
    (folder / "lines/inside").mkdir(parents=True)
    for name in ("a", "b", "inside/c"):
        line = f'{{"inputs": "in {name}", "targets": "out {name}"}}\n'
        (folder / f"lines/{name}.jsonl").write_text(line)
    (folder / "lines/notes.md").write_text("not data")
    (folder / "mirror/toy").mkdir(parents=True)
    table = pyarrow.table({"question": ["1 + 1", "1 + 2"], "answer": ["2", "3"]})
    parquet.write_table(table, folder / "mirror/toy/train.parquet")
    (folder / "prompts/templates/toy").mkdir(parents=True)
    (folder / "prompts/templates/toy/templates.yaml").write_text(TEMPLATES)
    return folder


@pytest.fixture
def remote(store: RemotePath, local: Path) -> str:
    put(local, store)
    return str(store)


def test_patterns_find_the_files_of_a_store(local: Path, remote: str) -> None:
    for pattern in ("lines/*.jsonl", "lines/a.jsonl", "lines/**/*.jsonl", "lines/[ab].jsonl"):
        here = open_examples([f"{local}/{pattern}"], allow_empty_targets=False)
        there = open_examples([f"{remote}/{pattern}"], allow_empty_targets=False)
        assert [there[i] for i in range(len(there))] == [here[i] for i in range(len(here))]
        assert there.fingerprint == here.fingerprint
        assert list(open_files(f"{remote}/{pattern}")) == list(open_files(f"{local}/{pattern}"))


def test_two_processes_may_copy_a_file_and_its_directory(store: RemotePath) -> None:
    content = bytes(range(256)) * 100
    (store / "file").write_bytes(content)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(copies.local_copy, [store, store / "file"] * 2))
    assert (found[0] / "file").read_bytes() == found[1].read_bytes() == content
    assert not list(found[0].glob(".*.part"))
