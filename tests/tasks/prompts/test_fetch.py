"""Getting promptsource's sdist with the real pip, from a folder instead of an index."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.cli.prompts import main
from mtf.data.tasks.prompts import fetch as module
from mtf.data.tasks.prompts.fetch import fetch
from mtf.data.tasks.prompts.templates import cached_archive, load_templates
from tests.tasks.prompts.helpers import YAML, write_archive

SDIST = "promptsource-0.2.3.tar.gz"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pip") is None, reason="pip is not installed"
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip sees."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MTF_PROMPTS", raising=False)
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
    }.items():
        monkeypatch.setenv(name, value)
    return folder


def write_sdist(folder: Path, ran: Path) -> str:
    """Writes an sdist that leaves a mark where it is run; returns its SHA-256."""
    root = SDIST.removesuffix(".tar.gz")
    files = {
        f"{root}/PKG-INFO": "Metadata-Version: 2.1\nName: promptsource\nVersion: 0.2.3\n"
        "Requires-Python: <3.10\n",
        f"{root}/setup.py": f"open({str(ran)!r}, 'w'); raise SystemExit('was run')",
        f"{root}/promptsource/templates/fruit/templates.yaml": YAML,
    }
    archive = write_archive(folder / SDIST, files)
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def test_the_sdist_is_fetched_once_and_not_run(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    monkeypatch.setattr(module, "SDIST_SHA256", write_sdist(index, ran))
    assert fetch() == cached_archive()
    assert cached_archive().read_bytes() == (index / SDIST).read_bytes()
    assert not ran.exists()
    assert load_templates().datasets == ("fruit",)
    assert [path.name for path in cached_archive().parent.iterdir()] == [SDIST]
    (index / SDIST).unlink()
    assert fetch() == cached_archive()  # it is there


def test_a_damaged_copy_is_fetched_again(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SDIST_SHA256", write_sdist(index, tmp_path / "ran"))
    cached_archive().parent.mkdir(parents=True)
    cached_archive().write_bytes(b"half of it")
    fetch()
    assert cached_archive().read_bytes() == (index / SDIST).read_bytes()


def test_another_file_is_refused(index: Path, tmp_path: Path) -> None:
    write_sdist(index, tmp_path / "ran")
    with pytest.raises(UserError, match=r"cannot download .* DO NOT MATCH THE HASHES"):
        fetch()
    assert list(cached_archive().parent.iterdir()) == []
    assert not (tmp_path / "ran").exists()


def test_what_pip_says_is_passed_on(index: Path) -> None:
    cached_archive().parent.mkdir(parents=True)
    cached_archive().write_bytes(b"mine")
    message = r"pip cannot download promptsource==0\.2\.3: ERROR: Could not find .* MTF_PROMPTS to "
    with pytest.raises(UserError, match=message):
        fetch()
    assert [path.read_bytes() for path in cached_archive().parent.iterdir()] == [b"mine"]


def test_a_python_without_pip_is_named(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = index / "python"
    empty.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    empty.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(empty))
    with pytest.raises(UserError, match=r"pip cannot download .*: python: No module named pip\."):
        fetch()


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MTF_CACHE", str(tmp_path / "file"))
    assert main(["fetch"]) == 2
    assert capsys.readouterr().err.startswith(f"error: MTF_CACHE: {tmp_path}/file cannot be used: ")
