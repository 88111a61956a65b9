"""T5X's own gin files, where T5X is installed or T5X_DIR is its checkout."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.gin.helpers import COMMON, OWN, Gin, bindings, config_of

# Not translated, with the message's reason.
_REFUSED = {
    "decoder_only": "no equivalent of @models.DecoderOnlyModel()",
    # The file that they include is not in T5X's repository.
    "umt5/pretrain_": "pretrain_deterministic.gin",
    "test_train_eval_t5_tiny.gin": "train_steps must be at least 1, not 0",
}


_FOUND = importlib.util.find_spec("t5x")
_INSTALLED = [*(_FOUND.submodule_search_locations or [])] if _FOUND is not None else []
T5X = Path(os.environ.get("T5X_DIR", "") or (Path(_INSTALLED[0]).parent if _INSTALLED else "/none"))
pytestmark = pytest.mark.skipif(
    not (T5X / "t5x/configs").is_dir(), reason="neither t5x is installed nor T5X_DIR is set"
)


@pytest.mark.parametrize("family", ["t5/t5_1_0", "t5/t5_1_1", "t5/mt5", "t5/byt5", "scalable_t5/*"])
@pytest.mark.parametrize("kind", ["pretrain", "finetune", "eval", "infer"])
def test_models(gin: Gin, family: str, kind: str) -> None:
    own = dict(OWN[kind])
    if kind == "eval":
        own["EVAL_OUTPUT_DIR"] = "'out'"
    for model in sorted(T5X.glob(f"t5x/examples/{family}/*.gin")):
        if "umt5" not in str(model):
            files = (model, T5X / f"t5x/configs/runs/{kind}.gin")
            status, out, err = gin(*files, *bindings(**COMMON, **own))
            assert status == 0, (model, err)
            config_of(out)


_EXAMPLES = ("*/*/examples/*.gin", "decoder_only/examples/*.gin", "scalable_t5/umt5/[pt]*.gin")


@pytest.mark.parametrize(
    "example",
    [
        str(path.relative_to(T5X))
        for pattern in _EXAMPLES
        for path in sorted(T5X.glob(f"t5x/examples/{pattern}"))
    ],
)
def test_examples(gin: Gin, example: str) -> None:
    text = (T5X / example).read_text()
    own = {"MODEL_DIR": "'run'", "DROPOUT_RATE": "0.0"}
    if "_eval.gin" in example or "_infer.gin" in example:
        path = "INITIAL_CHECKPOINT_PATH" if "14enfr_eval" in example else "CHECKPOINT_PATH"
        own = {path: "'start/checkpoint_1000000'"}
        own["utils.DatasetConfig.task_feature_lengths"] = COMMON["TASK_FEATURE_LENGTHS"]
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
