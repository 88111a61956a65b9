"""docs/gallery/pytorch.md with a tiny export and a small cache."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import mtf
from mtf.data import SentencePieceVocabulary
from tests import small
from tests.cache import helpers
from tests.gallery import hub
from tests.gallery.reader import FOLDER


@pytest.mark.slow
def test_the_script_trains_an_export_on(tmp_path: Path) -> None:
    for name in ("torch", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed (docs/gallery/pytorch.md)")
    (script,) = re.findall(r"```python\n(.*?)```", (FOLDER / "pytorch.md").read_text(), re.S)
    assert len(script.splitlines()) <= 60
    (tmp_path / "train_torch.py").write_text(script)

    texts = [f"Is {row['x']} a fruit? no yes" for row in helpers.fruit_rows()]
    model = hub.write_model(tmp_path / "model", texts)
    cache = helpers.write_cache(
        tmp_path, vocabulary=SentencePieceVocabulary(str(model / "spiece.model"))
    )
    paths = [str(tmp_path / "train_torch.py"), str(model), str(cache), helpers.NAME, "out"]
    values = ("--inputs=32", "--targets=8", "--steps=60")
    small.python(*paths, *values, cwd=tmp_path)

    state = json.loads((tmp_path / "out/checkpoint-60/trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert len(losses) == 60
    assert losses[-1] < 0.7 * losses[0]
    before, after = (mtf.load(str(path)) for path in (model, tmp_path / "out"))
    pair = ("Is thing 1 and so a fruit?", "yes")
    assert after.score(*pair) > before.score(*pair)
