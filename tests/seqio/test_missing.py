"""What is said where SeqIO or Beam are not installed; so this needs neither."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mtf import loaders
from mtf.cache import __main__ as cache
from mtf.errors import UserError
from mtf.seqio import registry as seqio_registry
from tests.seqio.helpers import BYTES, TRANSLATION, mixture, write_mirror


def test_the_loader_and_the_registry_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "seqio", None)
    with pytest.raises(UserError, match=r"pip install 'mtf-jax\[seqio\]'"):
        loaders.make_train_iterator(mixture(tmp_path), batch_size=2)
    with pytest.raises(UserError, match=r"pip install 'mtf-jax\[seqio\]'"):
        seqio_registry.register(TRANSLATION, vocabulary=BYTES)


def test_seqios_files_are_written_without_seqio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("seqio", "tensorflow"):
        monkeypatch.setitem(sys.modules, module, None)
    mirror, output = write_mirror(tmp_path / "mirror"), tmp_path / "cache"
    arguments = [TRANSLATION, "--output", str(output), "--data-dir", str(mirror)]
    arguments += ["--vocabulary", "byt5", "--format", "seqio", "--num-workers", "1"]
    assert cache.main(arguments) == 0
    assert (output / TRANSLATION / "COMPLETED").is_file()


def test_a_runner_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    arguments = [TRANSLATION, "--output", str(tmp_path / "cache"), "--vocabulary", "byt5"]
    arguments += ["--format", "seqio", "--runner", "beam:DirectRunner"]
    assert cache.main(arguments) == 2
    assert "pip install 'mtf-jax[" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()
