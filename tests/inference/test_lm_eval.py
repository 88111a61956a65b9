"""lm-evaluation-harness runs its tasks on our checkpoints, by its own seq2seq conventions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

from mtf.errors import UserError  # noqa: E402
from mtf.inference.lm_eval import HarnessModel  # noqa: E402
from mtf.inference.loading import load_model  # noqa: E402
from tests.inference import models  # noqa: E402

EOS = 1


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(models.write_checkpoint(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def model(checkpoint: str) -> HarnessModel:
    return HarnessModel(checkpoint, vocabulary="byt5", batch_size="4", device="cpu")


def requests(kind: Any, *arguments: Any) -> list[Instance]:
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def ids(text: str) -> list[int]:
    return [byte + 3 for byte in text.encode()]


def expected(checkpoint: str, inputs: list[int], targets: list[int]) -> tuple[float, bool]:
    loaded = load_model(checkpoint, vocabulary="byt5")
    table = models.log_probabilities(loaded.model.network, loaded.params, inputs, targets)
    likeliest = list(np.argmax(table, axis=-1))
    return float(sum(table[i, t] for i, t in enumerate(targets))), likeliest == targets


def test_loglikelihood_has_eos_behind_the_context_only(
    model: HarnessModel, checkpoint: str
) -> None:
    # What the model says itself is the greedy continuation.
    (said,) = model.generate_until(requests("generate_until", ("Is it?", {"max_gen_toks": 3})))
    pairs = [("Is it?", " yes"), ("Is it?", said), ("Is it? ", "no"), ("", "no")]
    found = model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    texts = [("Is it?", " yes"), ("Is it?", said), ("Is it?", " no"), ("", "no")]
    for result, (context, continuation) in zip(found, texts, strict=True):
        score, greedy = expected(checkpoint, [*ids(context), EOS], ids(continuation))
        assert result[0] == pytest.approx(score, abs=1e-4)
        assert result[1] == greedy
    assert found[1][1] and not found[0][1]


def test_targets_may_end_as_in_t0s_evaluation(checkpoint: str) -> None:
    model = HarnessModel(checkpoint, vocabulary="byt5", inputs_add_eos=False, targets_add_eos=True)
    (found,) = model.loglikelihood(requests("loglikelihood", ("Is it?", "no")), disable_tqdm=True)
    score, _ = expected(checkpoint, ids("Is it?"), [*ids("no"), EOS])
    assert found[0] == pytest.approx(score, abs=1e-4)


def test_rolling_reads_windows_as_the_harness_makes_them(checkpoint: str) -> None:
    model = HarnessModel(checkpoint, vocabulary="byt5", max_targets_length=4)
    (found,) = model.loglikelihood_rolling(
        requests("loglikelihood_rolling", ("abcdef",)), disable_tqdm=True
    )
    text = [*ids("abcdef"), EOS]
    first, _ = expected(checkpoint, [EOS], text[:4])
    # Three tokens are left; the harness gives them as much context as the window holds.
    second, _ = expected(checkpoint, text[2:4], text[4:])
    assert found == pytest.approx(first + second, abs=1e-4)


def test_too_long_a_context_loses_its_beginning(
    checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = HarnessModel(checkpoint, vocabulary="byt5", max_inputs_length=4)
    (found,) = model.loglikelihood(requests("loglikelihood", ("abcdef", "x")), disable_tqdm=True)
    assert found[0] == pytest.approx(
        expected(checkpoint, [*ids("def"), EOS], ids("x"))[0], abs=1e-4
    )
    assert "longer than max_inputs_length=4" in caplog.text


def test_generation_stops_where_it_is_told(model: HarnessModel) -> None:
    settings = {"until": [], "max_gen_toks": 6}
    contexts = [(letter, settings) for letter in "abcdefgh"]
    texts = model.generate_until(requests("generate_until", *contexts))
    place = max(range(8), key=lambda i: len(texts[i]))
    whole = texts[place]
    assert len(whole) > 2
    contexts[place] = (contexts[place][0], {**settings, "until": [whole[2]]})
    again = model.generate_until(requests("generate_until", *contexts))
    assert again[place] == whole.split(whole[2])[0]
    assert again[:place] == texts[:place] and again[place + 1 :] == texts[place + 1 :]


def test_a_task_of_ones_own_runs(model: HarnessModel, tmp_path: Path) -> None:
    rows = [{"q": "Is it?", "label": 0}, {"q": "Or is it?", "label": 1}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "yes_or_no",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_target": "label",
        "doc_to_choice": ["yes", "no"],
        "metric_list": [{"metric": "acc"}],
    }
    found = lm_eval.simple_evaluate(model, tasks=[task], bootstrap_iters=0)
    scores = model.loglikelihood(
        requests("loglikelihood", *((r["q"], f" {c}") for r in rows for c in ("yes", "no"))),
        disable_tqdm=True,
    )
    right = [int(scores[2 * i + 1][0] > scores[2 * i][0]) == r["label"] for i, r in enumerate(rows)]
    assert found["results"]["yes_or_no"]["acc,none"] == sum(right) / 2


def test_the_name_is_registered_and_bad_arguments_are_refused(checkpoint: str) -> None:
    assert get_model("mtf") is HarnessModel
    for arguments, message in [
        ("batch_size=auto", "batch_size must be a number here, not 'auto'"),
        ("dtype=float16", "float16 is not supported"),
        ("vocabulary=t6", "neither a SentencePiece model file nor"),
    ]:
        with pytest.raises(UserError, match=message):
            HarnessModel.create_from_arg_string(f"checkpoint={checkpoint},{arguments}")
