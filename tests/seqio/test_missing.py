"""What is said where SeqIO is not installed; so this does not need it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mtf.base.errors import UserError
from mtf.data import loaders
from mtf.evaluation import seqio_registry
from tests.seqio.helpers import BYTES, TRANSLATION, mixture


def test_the_loader_and_the_registry_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "seqio", None)
    with pytest.raises(UserError, match=r"pip install 'mtf-jax\[seqio\]'"):
        loaders.make_train_iterator(mixture(tmp_path), batch_size=2)
    with pytest.raises(UserError, match=r"pip install 'mtf-jax\[seqio\]'"):
        seqio_registry.register(TRANSLATION, vocabulary=BYTES)
