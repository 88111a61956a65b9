"""T5X's own gin files, where T5X is installed or T5X_DIR is its checkout."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtf.run import main as run
from tests.gin.helpers import COMMON, OWN, Gin, bindings, config_of, write

_RUNS = ("pretrain", "finetune", "eval", "infer")
# Not translated, with the message's reason.
_REFUSED = {
    "base_wmt_from_scratch_lion.gin": "no equivalent of @optax.lion()",
    "decoder_only": "no equivalent of @models.DecoderOnlyModel()",
    # The file that they include is not in T5X's repository.
    "umt5/pretrain_": "pretrain_deterministic.gin",
    "test_train_eval_t5_tiny.gin": "train_steps must be at least 1, not 0",
}


def folder() -> Path | None:
    """The folder that contains T5X's package."""
    if "T5X_DIR" in os.environ:
        return Path(os.environ["T5X_DIR"])
    found = importlib.util.find_spec("t5x")
    places = [] if found is None else [*(found.submodule_search_locations or [])]
    return Path(places[0]).resolve().parent if places else None


T5X = folder()
pytestmark = pytest.mark.skipif(T5X is None, reason="neither t5x is installed nor T5X_DIR is set")


def models() -> Iterator[str]:
    """The gin files of models, below T5X's folder."""
    for family in ("t5/t5_1_0", "t5/t5_1_1", "t5/mt5", "t5/byt5", "scalable_t5/t5_1_1"):
        for path in sorted((T5X or Path("/none")).glob(f"t5x/examples/{family}/*.gin")):
            yield f"{family}/{path.name}"


def examples() -> Iterator[str]:
    """The gin files of whole runs, below T5X's folder."""
    root = T5X or Path("/none")
    for pattern in ("*/*/examples/*.gin", "decoder_only/examples/*.gin", "scalable_t5/umt5/*.gin"):
        for path in sorted(root.glob(f"t5x/examples/{pattern}")):
            if path.name != "vocab.gin":
                yield str(path.relative_to(root))


@pytest.mark.parametrize("model", [*models()] or ["none"])
def test_models(gin: Gin, model: str) -> None:
    assert T5X is not None
    for kind in _RUNS:
        own = dict(OWN[kind])
        if kind == "eval":
            own["EVAL_OUTPUT_DIR"] = "'out'"
        files = [T5X / "t5x/examples" / model, T5X / f"t5x/configs/runs/{kind}.gin"]
        status, out, err = gin(*files, *bindings(**COMMON, **own))
        assert status == 0, err
        config_of(out)


@pytest.mark.parametrize("example", [*examples()] or ["none"])
def test_examples(gin: Gin, example: str, tmp_path: Path) -> None:
    assert T5X is not None
    text = (T5X / example).read_text()
    own = {"MODEL_DIR": "'run'", "DROPOUT_RATE": "0.0"}
    if "_eval.gin" in example or "_infer.gin" in example:
        path = "INITIAL_CHECKPOINT_PATH" if "14enfr_eval" in example else "CHECKPOINT_PATH"
        own = {path: "'start/checkpoint_1000000'"}
    if "MIXTURE_OR_TASK_NAME =" not in text or "MIXTURE_OR_TASK_NAME = %gin" in text:
        own["MIXTURE_OR_TASK_NAME"] = "'wmt_t2t_ende_v003'"
    status, out, err = gin(T5X / example, *bindings(**own))
    reason = next((why for name, why in _REFUSED.items() if name in example), None)
    if reason is not None:
        assert (status, out) == (2, "")
        assert reason in err
        return
    assert status == 0, err
    config_of(out)
    if "_eval.gin" in example or "_infer.gin" in example:
        return
    if importlib.util.find_spec("seqio") is not None:
        _dry_run(example, gin, own, tmp_path)


def _dry_run(example: str, gin: Gin, own: dict[str, str], folder: Path) -> None:
    """Checks the recipe as a user would, with tasks of the example's names."""
    assert T5X is not None
    pairs = write(folder, "pairs.tsv", *(f"question {n}\tanswer {n}" for n in range(8)))
    splits = {split: str(pairs) for split in ("train", "validation", "test")}
    names = ("wmt_t2t_ende_v003", "wmt14_enfr_v003", "wmt19_ende_v003")
    write(
        *(folder, "gin_original_tasks.py", "from mtf import tasks"),
        f"for name in {names}:",
        f"    tasks.register(name, tasks.FileSource({splits}), lambda row: row)",
    )
    stem = Path(example).stem
    module = ("--gin.MIXTURE_OR_TASK_MODULE='gin_original_tasks'",)
    status, _, err = gin(
        *(T5X / example, *bindings(**own), *module),
        *("--output", f"{stem}_recipe.py", "--gin.MODEL_DIR='new'"),
    )
    assert status == 0, err
    assert run([f"{stem}_recipe.py:recipe", "--dry-run"]) == 0
