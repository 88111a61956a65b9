"""What is said where SeqIO is not installed; so this does not need it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.cli import cache as cache
from mtf.data import loaders
from mtf.evaluation import seqio_registry
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
