"""Texts and log-likelihoods of `mtf.load` agree with the logits of the network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mtf
from mtf.base.errors import UserError
from mtf.inference.api import LanguageModel
from tests.inference import models

EOS = 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    path = models.write_checkpoint(tmp_path_factory.mktemp("model"))
    return mtf.load(path, vocabulary="byt5", batch_size=8, max_inputs_length=32)


def ids(text: str, *, eos: bool = True) -> list[int]:
    return [byte + 3 for byte in text.encode()] + [EOS] * eos


def expected_score(model: LanguageModel, inputs: list[int], targets: list[int]) -> float:
    loaded = model.loaded
    table = models.log_probabilities(loaded.model.network, loaded.params, inputs, targets)
    return float(sum(table[i, token] for i, token in enumerate(targets)))


INPUTS = ["Is it?", "Or is it a longer one?", "x", "What about țară, 日本?", "five"]
TARGETS = ["yes", "no", "a longer target", "t", "?"]


def test_score_and_loss_are_the_networks(model: LanguageModel) -> None:
    expected = [expected_score(model, ids(x), ids(y)) for x, y in zip(INPUTS, TARGETS, strict=True)]
    assert model.score(INPUTS, TARGETS) == pytest.approx(expected, abs=1e-4)
    assert model.score(INPUTS[0], TARGETS[0]) == pytest.approx(expected[0], abs=1e-4)
    num_tokens = sum(len(ids(target)) for target in TARGETS)
    assert model.loss(INPUTS, TARGETS) == pytest.approx(-sum(expected) / num_tokens, abs=1e-5)
    assert model.loss(INPUTS[0], TARGETS[0]) == pytest.approx(-expected[0] / 4, abs=1e-5)


def test_rank_compares_sums_over_tokens(model: LanguageModel) -> None:
    choices = ["yes", "no", "maybe"]
    expected = [expected_score(model, ids(INPUTS[0]), ids(choice)) for choice in choices]
    ranking = model.rank(INPUTS[0], choices)
    assert ranking.scores == pytest.approx(expected, abs=1e-4)
    assert ranking.best == int(np.argmax(expected))
    assert ranking.num_tokens == [4, 3, 6]
    assert model.rank(INPUTS, choices)[0].scores == pytest.approx(expected, abs=1e-4)
    unequal = model.rank(INPUTS, [["no"], choices, *[["no"]] * 3])
    assert [len(found.scores) for found in unequal] == [1, 3, 1, 1, 1]
    with pytest.raises(UserError, match=r"choices\[1\] is a string; expected a list of strings"):
        model.rank(INPUTS[:2], [["no"], "yes"])


def test_greedy_text_is_the_likeliest_token_at_every_step(model: LanguageModel) -> None:
    found = model.generate(INPUTS, max_length=6)
    for text, generated in zip(INPUTS, found, strict=True):
        targets: list[int] = []
        while len(targets) < 6 and EOS not in targets:
            loaded = model.loaded
            table = models.log_probabilities(
                loaded.model.network, loaded.params, ids(text), [*targets, 0]
            )
            targets.append(int(np.argmax(table[-1])))
        assert generated == model.vocabulary.decode(targets)
    assert model.generate(INPUTS[2], max_length=6) == found[2]
    assert model.generate([]) == [] and model.score([], []) == [] and model.rank([], []) == []


def test_samples_have_scores_and_the_best_is_first(model: LanguageModel) -> None:
    beams = model.samples(INPUTS, method="beam", num_return=3, max_length=4)
    for found in beams:
        assert len(found) == 3
        assert [s.score for s in found] == sorted((s.score for s in found), reverse=True)
    settings = {"method": "sample", "max_length": 6}
    first = model.generate(INPUTS, seed=3, **settings)
    assert first == model.generate(INPUTS, seed=3, **settings)
    assert first != model.generate(INPUTS, seed=4, **settings)


def test_inputs_end_as_asked_for(model: LanguageModel) -> None:
    without = LanguageModel(model.loaded, inputs_add_eos=False)
    expected = expected_score(model, ids("Is it?", eos=False), ids("yes"))
    assert without.score("Is it?", "yes") == pytest.approx(expected, abs=1e-4)
    assert model.score("", "yes") == pytest.approx(
        expected_score(model, [EOS], ids("yes")), abs=1e-4
    )
    with pytest.raises(UserError, match=r"inputs\[1\] has no tokens; expected at least one"):
        without.score(["a", ""], ["b", "c"])


def test_what_is_too_long_is_cut_off_and_told(
    model: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    short = LanguageModel(model.loaded, max_inputs_length=5, max_targets_length=3)
    found = short.score(["abcdefg", "abcd"], ["yes", "no"])
    cut = expected_score(model, ids("abcd"), ids("ye"))
    assert found == pytest.approx([cut, expected_score(model, ids("abcd"), ids("no"))], abs=1e-4)
    assert "1 of 2 inputs are longer than 5 tokens" in caplog.text
    assert "1 of 2 targets are longer than 3 tokens" in caplog.text
    assert short.num_truncated == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.score(["a", "b"], ["c", " "]), r"targets\[1\] is empty"),
        (lambda m: m.score(["a"], ["b", "c"]), "There are 1 inputs but 2 targets"),
        (lambda m: m.score(["a"], "b"), "must both be strings, or both lists"),
        (lambda m: m.loss([], []), "inputs and targets are empty"),
        (lambda m: m.rank("a", []), "choices is empty; expected at least one choice"),
        (lambda m: m.rank("a", "b"), "choices is a string; expected a list of strings"),
        (lambda m: m.rank(["a", "b"], [["x", ""], ["y"]]), r"choices\[0\]\[1\] is empty"),
        (lambda m: m.rank(["a", "b"], [["x"]]), "2 inputs but 1 lists of choices"),
        (lambda m: m.generate(["a", 3]), r"texts\[1\] has type int; expected a string"),
        (lambda m: m.generate("a", max_len=3), "no setting 'max_len'. Did you mean max_l"),
        (lambda m: m.generate("a", method="beams"), "method must be"),
        (lambda m: m.generate("a", num_return=2), r"For several, call samples\(\)"),
    ],
)
def test_bad_input_is_named(
    model: LanguageModel, call: Callable[[LanguageModel], object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        call(model)


def test_scores_that_are_no_numbers_stop_and_say_which(tmp_path: Path) -> None:
    model = mtf.load(models.write_checkpoint(tmp_path), vocabulary="byt5")
    table = model.loaded.params["token_embedder"]["embedding"]
    broken = table.at[ord("z") + 3].set(float("nan"))
    params = {**model.loaded.params, "token_embedder": {"embedding": broken}}
    loaded = type(model.loaded)(**{**vars(model.loaded), "params": params})
    model = LanguageModel(loaded)
    assert np.isfinite(model.score("a", "b"))
    with pytest.raises(UserError, match=r"log-likelihood of inputs\[2\] is nan"):
        model.rank(["a", "b", "c"], [["d"], ["e"], ["f", "z!"]])
    with pytest.raises(UserError, match=r"texts\[1\]: the score is NaN or infinite"):
        model.generate(["a", "z"], max_length=4)
