"""Decoding gives transformers' tokens, one for one, and scoring its log-likelihoods."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed (extra: torch)"
)

from conversion import huggingface, open_checkpoint  # noqa: E402
from mtf import convert  # noqa: E402
from mtf.inference.decoding.generate import generate  # noqa: E402
from mtf.inference.decoding.settings import DecodingConfig  # noqa: E402
from mtf.inference.predictor import Predictor  # noqa: E402
from mtf.models.settings import ModelConfig  # noqa: E402
from mtf.models.stacking import stack_layers  # noqa: E402
from mtf.partitioning.mesh import PjitPartitioner  # noqa: E402
from mtf.partitioning.settings import PartitionerConfig  # noqa: E402
from tests.conversion import writers  # noqa: E402

MAX_LENGTH = 20
MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "t5_1_0": ({"gated": False, "tied": True}, []),
    "t5_1_1": ({"num_encoder_layers": 3}, []),
    "mt5": ({"vocab_size": 600, "num_heads": 2, "num_decoder_layers": 3}, ["--model-type", "mt5"]),
    "umt5": ({"num_encoder_layers": 3, "bias_per_layer": True}, []),
}
LENGTHS = (12, 7, 1, 9, 3, 12)


@functools.cache
def models(name: str, folder: Path) -> tuple[Any, Any, Any]:
    """transformers' model, and our network and parameters, from one export."""
    sizes, options = MODELS[name]
    parameters = writers.random_parameters(**sizes, seed=3)
    if name == "t5_1_0":
        # Or the tied projection would repeat the token that came in.
        parameters["token_embedder/embedding"] *= 0.05
    source = writers.write_t5x(folder, parameters)
    out = folder / "out"
    assert convert.main([str(source), str(out), "--to", "hf", *options]) == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).float().eval()
    if name == "umt5":  # transformers 5 always sets it, which scales the logits of the beams.
        model.config.tie_word_embeddings = False
    config, params = writers.load_network(
        huggingface.Export(open_checkpoint(source), dtype="float32")
    )
    return model, config, params


@pytest.fixture(scope="module", params=MODELS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield models(request.param, tmp_path_factory.mktemp(request.param))
    torch.set_num_threads(before)


def prompts(vocab_size: int, seed: int) -> np.ndarray:
    """Inputs of unequal lengths in one batch."""
    tokens = np.random.default_rng(seed).integers(2, vocab_size, (len(LENGTHS), max(LENGTHS)))
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = 0
        tokens[row, length - 1] = 1
    return tokens.astype(np.int32)


def frequent_token(model: Any, inputs: np.ndarray, **settings: Any) -> int:
    """A token that rows decode at different steps, to stand for EOS."""
    free = theirs(model, inputs, eos_token_id=None, **settings)[0][:, 0]
    best, most = 0, -1
    for token in np.unique(free[:, 1:]):
        rows = [np.flatnonzero(row == token) for row in free]
        steps = {int(found[0]) for found in rows if found.size and found[0] > 0}
        if token and len(steps) > most:
            best, most = int(token), len(steps)
    assert most >= 2
    return best


def theirs(model: Any, inputs: np.ndarray, **settings: Any) -> tuple[np.ndarray, Any]:
    """transformers' tokens (batch, num_return, length) and their scores."""
    settings = {"num_return_sequences": 1, **settings}
    with torch.no_grad():
        out = model.generate(
            input_ids=torch.from_numpy(inputs.astype(np.int64)),
            attention_mask=torch.from_numpy((inputs != 0).astype(np.int64)),
            max_new_tokens=MAX_LENGTH,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
    tokens = out.sequences.numpy()[:, 1:]
    tokens = np.pad(tokens, ((0, 0), (0, MAX_LENGTH - tokens.shape[1])))
    tokens = tokens.reshape(len(inputs), settings["num_return_sequences"], -1)
    # With pad_token_id 0, its beam search pads with EOS.
    ends = tokens == settings["eos_token_id"]
    tokens = np.where(np.cumsum(ends, axis=-1) - ends > 0, 0, tokens)
    scores = getattr(out, "sequences_scores", None)
    return tokens, None if scores is None else scores.numpy().reshape(len(inputs), -1)


@pytest.mark.parametrize("stacked", [False, True])
def test_greedy(loaded: Any, stacked: bool) -> None:
    model, config, params = loaded
    params = stack_layers(params) if stacked else params
    inputs = prompts(config.vocab_size, 1)
    eos = frequent_token(model, inputs, num_beams=1)
    expected, _ = theirs(model, inputs, num_beams=1, eos_token_id=eos)
    lengths = (expected[:, 0] != 0).sum(axis=1)
    assert len(set(lengths.tolist())) > 1
    decoding = DecodingConfig(max_length=MAX_LENGTH)
    ours = generate(config, params, inputs, decoding, eos_id=eos).tokens
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    ("length_penalty", "early_stopping"),
    [(1.0, False), (1.0, True), (0.0, False), (2.0, False), (-0.5, True)],
)
def test_beam_4(loaded: Any, length_penalty: float, early_stopping: bool) -> None:
    model, config, params = loaded
    decoding = DecodingConfig(
        method="beam",
        max_length=MAX_LENGTH,
        num_beams=4,
        num_return=4,
        length_penalty=length_penalty,
        length_penalty_form="hf",
        early_stopping=early_stopping,
    )
    inputs = prompts(config.vocab_size, 0)
    eos = frequent_token(model, inputs, num_beams=1)
    expected, scores = theirs(
        model,
        inputs,
        num_beams=4,
        num_return_sequences=4,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        eos_token_id=eos,
    )
    ended = (expected == eos).any(axis=-1)
    assert ended.any() or length_penalty > 1  # which makes the longest win
    ours = generate(config, params, inputs, decoding, eos_id=eos)
    np.testing.assert_array_equal(ours.tokens, expected)
    np.testing.assert_allclose(ours.scores, scores, rtol=1e-5, atol=1e-5)


def test_scores(loaded: Any) -> None:
    """Examples and targets that share rows have the log-likelihoods of each target alone."""
    model, config, params = loaded
    rng = np.random.default_rng(2)

    def tokens(length: int) -> list[int]:
        return [*rng.integers(2, config.vocab_size, length).tolist(), 1]

    examples = [(tokens(number), [tokens(n) for n in (3, 1, 7)]) for number in (4, 30, 11)]
    partitioner = PjitPartitioner.create(PartitionerConfig())
    predictor = Predictor(ModelConfig(config), params, None, partitioner)
    found = list(predictor.log_likelihoods(examples))
    for (inputs, targets), scores in zip(examples, found, strict=True):
        for target, score in zip(targets, scores.log_likelihoods, strict=True):
            with torch.no_grad():
                ids, labels = torch.tensor([inputs]), torch.tensor([target])
                logits = model(input_ids=ids, labels=labels).logits
            log_probs = torch.log_softmax(logits, -1)[0, range(len(target)), target]
            np.testing.assert_allclose(score, log_probs.sum(), rtol=1e-5, atol=1e-4)


def test_inputs_longer_than_the_nearest_buckets(loaded: Any) -> None:
    """Longer than the exact half of the relative position buckets."""
    model, config, params = loaded
    inputs = np.random.default_rng(7).integers(2, config.vocab_size, (2, 150)).astype(np.int32)
    expected, _ = theirs(model, inputs, num_beams=1, eos_token_id=None)
    ours = generate(
        config, params, jax.numpy.asarray(inputs), DecodingConfig(max_length=MAX_LENGTH), eos_id=-1
    ).tokens
    np.testing.assert_array_equal(ours, expected)
