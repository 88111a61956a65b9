"""Model cards, and uploads to the hub."""

from __future__ import annotations

import fnmatch
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mtf import convert
from tests.conversion import writers


def export(folder: Path, *options: str, to: str = "hf") -> tuple[int, Path]:
    source = writers.write_t5x(folder, writers.random_parameters(), 1000)
    arguments = [str(source), str(folder / "out"), "--to", to, *options]
    return convert.main(arguments), folder / "out"


def test_model_card(tmp_path: Path) -> None:
    status, out = export(tmp_path)
    assert status == 0
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\ntags:\n- t5\n---\n")
    source = tmp_path / "checkpoint_1000"
    assert f"Source: `{source}` (T5X with zarr and msgpack, step 1,000)" in card
    assert "Class: `T5ForConditionalGeneration` of `transformers`" in card
    assert "inputs ended with EOS" in card and "The use of EOS is assumed" in card
    assert "This directory has no tokenizer." in card
    generation = json.loads((out / "generation_config.json").read_text())
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    assert generation.items() >= ids.items()


def test_model_card_of_inputs_without_eos(tmp_path: Path) -> None:
    from conversion import huggingface, open_checkpoint

    source = writers.write_t5x(tmp_path, writers.random_parameters(), 1000)
    card = huggingface.model_card(huggingface.Export(open_checkpoint(source), inputs_add_eos=False))
    assert "inputs did not end with EOS" in card and "assumed" not in card


@pytest.mark.parametrize(
    ("repo", "to", "words"),
    [
        ("a/b/c", "hf", "expected the name of a repository"),
        ("me/t 5", "hf", "expected the name of a repository"),
        ("me/t5", "t5x", "--push-to-hub cannot be used with --to t5x"),
    ],
)
def test_refusals(
    repo: str, to: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = export(tmp_path, "--push-to-hub", repo, to=to)
    assert (status, out.exists()) == (2, False)
    assert words in capsys.readouterr().err


class _Hub:
    """Stands in for huggingface_hub with a token; keeps the files that are uploaded."""

    def __init__(self, error: Exception | None = None):
        self.created: list[str] = []
        self.files: dict[str, bytes] = {}
        self._error = error

    def get_token(self) -> str:
        return "secret"

    def create_repo(self, repo: str, *, exist_ok: bool) -> None:
        if self._error is not None:
            raise self._error
        self.created.append(repo)

    def upload_folder(
        self, *, repo_id: str, folder_path: str, commit_message: str, ignore_patterns: str
    ) -> str:
        assert repo_id in self.created and commit_message
        self.files = {
            path.name: path.read_bytes()
            for path in Path(folder_path).iterdir()
            if not fnmatch.fnmatch(path.name, ignore_patterns)
        }
        return f"https://huggingface.co/{repo_id}/commit/0"


def test_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = _Hub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    status, out = export(tmp_path, "--push-to-hub", "me/t5")
    assert status == 0
    assert "Uploaded to https://huggingface.co/me/t5/commit/0" in capsys.readouterr().out
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert b"test_upload" in files.pop("mtf_job.json")  # paths of this machine
    assert hub.files == files


def test_a_failed_upload_says_how_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", _Hub(OSError("no network")))
    status, out = export(tmp_path, "--push-to-hub", "me/t5")
    message = capsys.readouterr().err
    assert status == 1 and (out / "config.json").is_file()
    assert f"{out} is complete, but it could not be uploaded to me/t5: no network." in message
    assert f"run: hf upload me/t5 {out} . --exclude mtf_job.json\n" in message


@pytest.mark.parametrize("module", [None, SimpleNamespace(get_token=lambda: None)])
def test_without_a_token_the_command_is_printed(
    module: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)  # None: it cannot be imported.
    status, out = export(tmp_path / "my models", "--push-to-hub", "me/t5")
    assert status == 0
    command = f"hf upload me/t5 '{out}' . --exclude mtf_job.json"
    assert f"hf auth login\n  {command}\n" in capsys.readouterr().out
