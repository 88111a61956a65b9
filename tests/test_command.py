"""Which vocabulary the command line means, and what a closed pipe does."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary
from mtf.jobs import Cache
from mtf.jobs.cache.run import chosen_vocabulary


def chosen(original: str = "t5", **settings: Any) -> Vocabulary:
    return chosen_vocabulary(Cache("mixture", "output", **settings), original)


def test_bytes() -> None:
    assert chosen(vocabulary="byt5") == ByteVocabulary()
    assert chosen(vocabulary="byt5", extra_ids=100) == ByteVocabulary(100)


@pytest.mark.parametrize(("fixture", "num_added"), [("t5_model", 100), ("mt5_model", 0)])
def test_sentinels_are_added_where_the_model_has_none(
    fixture: str, num_added: int, request: pytest.FixtureRequest
) -> None:
    vocabulary = chosen(vocabulary=str(request.getfixturevalue(fixture)))
    assert isinstance(vocabulary, SentencePieceVocabulary) and vocabulary.num_added_ids == num_added
    assert vocabulary.encode("<extra_id_0>") == [vocabulary.vocab_size - 1]


def test_a_vocabulary_that_cannot_be_downloaded_must_be_named() -> None:
    with pytest.raises(UserError, match="--vocabulary is missing; the vocabulary romanian"):
        chosen(original="romanian")


@pytest.mark.parametrize("command", ["mtf.cli.convert.command", "mtf.cli.cache"])
def test_a_command_that_writes_is_not_done_when_its_reader_leaves(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 0 would say that all is written."""

    def closed(*_: object) -> int:
        raise BrokenPipeError

    module = importlib.import_module(command)
    is_export = "convert" in command
    target = "mtf.jobs.convert.run.export" if is_export else "mtf.jobs.cache.run._write"
    monkeypatch.setattr(target, closed)
    arguments = {
        "mtf.cli.convert.command": [str(tmp_path), str(tmp_path / "out"), "--to", "hf"],
        "mtf.cli.cache": ["mc4", "--output", str(tmp_path / "cache")],
    }
    with pytest.raises(BrokenPipeError):
        module.main(arguments[command])


def test_a_full_disk_behind_the_output_is_one_message() -> None:
    command = [sys.executable, "-m", "mtf", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device.\n"
