"""A run goes on in another working directory than it was started in."""

from __future__ import annotations

import shutil
from pathlib import Path

import fiddle as fdl
import pytest

import conversion
import recipes
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.config import apply_overrides, check_resume, load_config, write_run_dir
from mtf.data.loaders import make_train_iterator
from mtf.data.settings import TextCorporaConfig, TextFilesConfig
from mtf.data.text.vocabularies import SentencePieceVocabulary
from mtf.inference.opening import read_run_config
from mtf.jobs import Train
from tests import small
from tests.inference import models


def _config(*overrides: str) -> fdl.Config[Train]:
    return apply_overrides(
        recipes.pretrain_text(), ["data.files=text.txt", "model_dir=runs/one", *overrides]
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `runs/one` was started on `text.txt`; the working directory is another one now."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    small.write_text(project)
    monkeypatch.chdir(project)
    write_run_dir("runs/one", _config(), "command")
    monkeypatch.chdir(elsewhere)
    return project


def _resumed(run_dir: Path, *overrides: str) -> Train:
    config = apply_overrides(load_config(run_dir), [f"model_dir={run_dir}", *overrides])
    check_resume(config, run_dir, ["data.files"])
    job: Train = config_lib.build(config)
    return job


def test_files_are_found_where_the_run_was_started(project: Path) -> None:
    job = _resumed(project / "runs" / "one")
    assert isinstance(job.data, TextFilesConfig)
    assert job.data.files == str(project / "text.txt")


def test_the_run_goes_on_where_it_was_started(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the recipe, whose paths are relative, after a start elsewhere."""
    write_run_dir(project / "runs" / "one", load_config(project / "runs" / "one"), "elsewhere")
    monkeypatch.chdir(project)
    check_resume(_config(), "runs/one")
    assert load_config("runs/one").data.files == str(project / "text.txt")


def test_the_data_are_the_same(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the place in them can be restored."""
    job = _resumed(project / "runs" / "one")
    state = make_train_iterator(job.data, batch_size=8, prefetch=0).get_state()
    monkeypatch.chdir(project)
    here = config_lib.build(_config())
    make_train_iterator(here.data, batch_size=8, prefetch=0).set_state(state)


def test_a_project_that_was_moved_is_found_where_it_is(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(project, tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert _resumed(Path("runs/one")).data.files == "text.txt"
    write_run_dir("runs/one", load_config("runs/one"), "again")
    monkeypatch.chdir(tmp_path)
    assert _resumed(Path("moved/runs/one")).data.files == str(tmp_path / "moved" / "text.txt")


def test_what_is_set_anew_is_of_the_working_directory(project: Path) -> None:
    here = Path.cwd()
    (here / "text.txt").write_text("another text of the same name\n")
    assert _resumed(project / "runs" / "one", "data.files=text.txt").data.files == "text.txt"
    assert _resumed(project / "runs" / "one").data.files == str(project / "text.txt")
    with pytest.raises(UserError, match=f"data.files: '{project}/text.txt' → '{here}/text.txt'"):
        check_resume(_config(), project / "runs" / "one")


def test_patterns_dicts_and_vocabularies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "1.txt").write_text("x\n")
    (tmp_path / "my.model").write_bytes(b"")
    config = recipes.mt5_lm_adapt(
        "small", files={"en": "en/*.txt", "ro": ("ro.txt", "/abs.txt")}, vocabulary="my.model"
    )
    monkeypatch.chdir(tmp_path)
    write_run_dir("run", config, "command")
    monkeypatch.chdir("/")
    data = config_lib.build(load_config(tmp_path / "run")).data
    assert isinstance(data, TextCorporaConfig)
    assert data.files == {"en": f"{tmp_path}/en/*.txt", "ro": ("ro.txt", "/abs.txt")}
    assert isinstance(data.vocabulary, SentencePieceVocabulary)
    assert data.vocabulary.path == str(tmp_path / "my.model")


def test_export_and_inference_find_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.model").write_bytes(b"")
    models.write_run(tmp_path / "run")
    config = load_config("run")
    config.data.vocabulary = fdl.Config(SentencePieceVocabulary, "my.model")
    write_run_dir("run", config, "command")
    monkeypatch.chdir("/")
    run = read_run_config(conversion.open_checkpoint(tmp_path / "run"))
    assert run is not None
    assert run.vocabulary == SentencePieceVocabulary(str(tmp_path / "my.model"))


def test_what_is_nowhere_names_the_working_directory(project: Path) -> None:
    (project / "text.txt").unlink()
    job = _resumed(project / "runs" / "one")
    with pytest.raises(UserError, match=rf"text\.txt does not exist in {Path.cwd()}"):
        make_train_iterator(job.data, batch_size=8)
