"""The export in PyTorch: the same logits, the same greedy tokens, the same token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed (extra: torch)"
)

from conversion import huggingface, open_checkpoint  # noqa: E402
from conversion.sentencepiece_model import read_sentencepiece  # noqa: E402
from conversion.tokenizer import (  # noqa: E402
    Tokenizer,
    bytes_of,
    tokenizer_adds_eos,
    write_tokenizer,
)
from mtf import convert  # noqa: E402
from mtf.data.text.vocabularies import ByteVocabulary  # noqa: E402
from mtf.inference.decoding.generate import generate  # noqa: E402
from mtf.inference.decoding.settings import DecodingConfig  # noqa: E402
from mtf.jobs.convert import verification  # noqa: E402
from tests import made_up  # noqa: E402
from tests.conversion import writers  # noqa: E402
from tests.golden import recorded  # noqa: E402
from tests.inference import models  # noqa: E402

MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "t5_1_0": ({"gated": False, "tied": True}, []),
    "t5_1_1": ({}, []),
    "t5_1_1_bfloat16": ({}, ["--dtype", "bfloat16", "--max-shard-size", "50KB"]),
    "mt5": ({"vocab_size": 600}, ["--model-type", "mt5"]),
    "byt5": ({"num_encoder_layers": 6}, ["--model-type", "byt5"]),
    "umt5": ({"bias_per_layer": True, "num_encoder_layers": 3}, ["--vocabulary", "byt5"]),
    "umt5_tied_ungated": (
        {"bias_per_layer": True, "gated": False, "tied": True, "num_decoder_layers": 3},
        ["--dtype", "bfloat16"],
    ),
    "deeper_decoder": ({"num_encoder_layers": 1, "num_decoder_layers": 3}, []),
    "heads_wider_than_d_model": ({"num_heads": 5, "head_dim": 16}, []),
    "padded_vocabulary": ({"vocab_size": 512}, ["--vocabulary", "byt5"]),
}
# The others are slow: one of each kind of network, projection and dtype is enough each time.
ALWAYS = ("t5_1_0", "t5_1_1_bfloat16", "umt5")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def logits_delta(printed: str) -> float:
    found = re.search(r"max \|Δ\| = (\S+) on random", printed)
    assert found
    return float(found[1])


def assert_same_as_loaded(export: huggingface.Export, out: Path) -> None:
    """Models that read a layer at a time return what the loaded ones return."""
    tokens = verification.sample_tokens(export.architecture.vocab_size)
    loaded = getattr(transformers, export.class_name).from_pretrained(out).float().eval()
    if export.model_type == "umt5":
        loaded.config.tie_word_embeddings = export.architecture.logits_via_embedding
    theirs = verification.their_logits(verification.open_torch(export, out), tokens)
    np.testing.assert_array_equal(theirs, verification.their_logits(loaded, tokens))
    config, params = writers.load_network(export)
    ours = verification.our_logits(config, verification.read_on_use(export), tokens)
    np.testing.assert_array_equal(ours, verification.our_logits(config, params, tokens))


@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_verify_and_greedy(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes, options = MODELS[name]
    write = writers.write_orbax if name == "byt5" else writers.write_t5x
    parameters = writers.random_parameters(**sizes, seed=3)
    if sizes.get("tied"):
        # Or the tied projection would repeat the token that came in.
        parameters["token_embedder/embedding"] *= 0.05
    source = write(tmp_path, parameters)
    out = tmp_path / "out"
    assert convert.main([str(source), str(out), "--to", "hf", "--verify", *options]) == 0
    printed = capsys.readouterr().out
    assert logits_delta(printed) <= 1e-4
    assert (" MT5ForConditionalGeneration" in printed) == name.startswith("mt5")
    assert (" UMT5ForConditionalGeneration" in printed) == name.startswith("umt5")
    assert ("both tokenizers return the same ids" in printed) == ("byt5" in options)
    dtype = "bfloat16" if "bfloat16" in options else "float32"
    export = huggingface.Export(
        open_checkpoint(source), dtype=dtype, model_type="mt5" if name.startswith("mt5") else None
    )
    assert_same_as_loaded(export, out)

    # The class that the config names, and our model, both from what the user would load.
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).float().eval()
    config, params = writers.load_network(export)
    rng = np.random.default_rng(5)
    tokens = rng.integers(2, config.vocab_size, (3, 12))
    tokens[1, 7:] = 0
    tokens[2, 2:] = 0
    with torch.no_grad():
        theirs = model.generate(
            input_ids=torch.from_numpy(tokens),
            attention_mask=torch.from_numpy((tokens != 0).astype(np.int64)),
            max_new_tokens=16,
            do_sample=False,
            num_beams=1,
        ).numpy()[:, 1:]
    generated = generate(
        config, params, jnp.asarray(tokens, jnp.int32), DecodingConfig(max_length=16)
    )
    ours = np.asarray(generated.tokens[:, 0])
    np.testing.assert_array_equal(ours[:, : theirs.shape[1]], theirs)
    assert len(np.unique(ours)) > 3  # not one token again and again


@pytest.mark.parametrize("layout", ["zarr", "orbax"])
def test_checkpoint_of_t5x(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = recorded.unpack(f"rsqrt_{layout}", tmp_path / layout)
    arguments = [str(source), str(tmp_path / "out"), "--to", "hf", "--verify"]
    assert convert.main([*arguments, "--vocabulary", "byt5"]) == 0
    assert logits_delta(capsys.readouterr().out) <= 1e-4


@pytest.mark.parametrize(
    "wrong", [{"feed_forward_proj": "gated-silu"}, {"relative_attention_max_distance": 20}]
)
def test_other_numbers_fail(
    wrong: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = huggingface.config
    monkeypatch.setattr(huggingface, "config", lambda export: right(export) | wrong)
    source = writers.write_t5x(tmp_path / "source", writers.random_parameters())
    out = tmp_path / "exported" / "out"
    assert convert.main([str(source), str(out), "--to", "hf", "--verify"]) == 1
    printed = capsys.readouterr().out
    assert logits_delta(printed) > 1e-4
    assert "VERIFICATION FAILED" in printed
    assert not out.parent.exists()


LINES = [*made_up.HARD_LINES, *made_up.lines(number=320)]


@pytest.mark.parametrize(("fixture", "extra_ids"), [("t5_model", 100), ("mt5_model", 0)])
def test_same_ids_as_sentencepiece(
    fixture: str, extra_ids: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import sentencepiece

    path = request.getfixturevalue(fixture)
    write_tokenizer(tmp_path, Tokenizer(read_sentencepiece(path), extra_ids))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    reference = sentencepiece.SentencePieceProcessor(str(path))
    first_sentinel = reference.get_piece_size() + extra_ids - 1
    for line in LINES:
        assert tokenizer(line).input_ids == [*reference.encode(line), 1], line
    sentence = "The cat sleeps."
    assert tokenizer.decode(tokenizer(sentence).input_ids, skip_special_tokens=True) == sentence
    ids = tokenizer("before <extra_id_0> between <extra_id_1>").input_ids
    assert [i for i in ids if i > first_sentinel - 100] == [first_sentinel, first_sentinel - 1]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    if extra_ids:
        again = transformers.T5Tokenizer.from_pretrained(tmp_path)
        assert again.convert_tokens_to_ids("<extra_id_0>") == first_sentinel
        assert again.convert_tokens_to_ids("<extra_id_99>") == first_sentinel - 99
        assert [again(line).input_ids for line in LINES[5:50]] == [
            [*reference.encode(line), 1] for line in LINES[5:50]
        ]


@pytest.mark.parametrize("extra_ids", [0, 125])
def test_bytes(extra_ids: int, tmp_path: Path) -> None:
    assert write_tokenizer(tmp_path, Tokenizer(extra_ids=extra_ids)) == "ByT5Tokenizer"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Țară 😀"
    assert tokenizer(text).input_ids == [*(byte + 3 for byte in text.encode()), 1]
    if extra_ids:
        assert tokenizer("a<extra_id_0>").input_ids == [ord("a") + 3, 3 + 256 + 125 - 1, 1]
        assert tokenizer.convert_tokens_to_ids("<extra_id_124>") == 259


def test_bytes_of_umt5(tmp_path: Path) -> None:
    """AutoTokenizer of transformers 5 ignores ByT5Tokenizer for the model type umt5."""
    write_tokenizer(tmp_path, Tokenizer(extra_ids=125), is_umt5=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "umt5"}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in LINES:
        if text:
            assert tokenizer(text).input_ids == [*(byte + 3 for byte in text.encode()), 1]
    assert tokenizer("a<extra_id_0>").input_ids == [ord("a") + 3, 3 + 256 + 125 - 1, 1]
    assert tokenizer_adds_eos(tmp_path) and bytes_of(tmp_path) == Tokenizer(extra_ids=125)


def assert_no_end_of_sequence(directory: Path, reference: Callable[[str], list[int]]) -> None:
    """No end of sequence unless it is written, also when transformers has saved the tokenizer."""
    (directory / "config.json").write_text(json.dumps({"model_type": "t5"}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(directory / "saved")
    for each in (tokenizer, transformers.AutoTokenizer.from_pretrained(directory / "saved")):
        lines = [line for line in LINES if line]
        assert each(lines).input_ids == [reference(line) for line in lines]
        text = "yes and no"
        assert each(text_target=text + each.eos_token).input_ids == [*reference(text), 1]
        assert each.decode([*reference(text), 1], skip_special_tokens=True) == text
    assert not tokenizer_adds_eos(directory) and not tokenizer_adds_eos(directory / "saved")


def test_bytes_without_end_of_sequence(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, Tokenizer(extra_ids=20), add_eos=False)
    assert_no_end_of_sequence(tmp_path, ByteVocabulary(20).encode)
    assert bytes_of(tmp_path) == bytes_of(tmp_path / "saved") == Tokenizer(extra_ids=20)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("a<extra_id_0>").input_ids == [ord("a") + 3, 3 + 256 + 20 - 1]


def test_pieces_without_end_of_sequence(tmp_path: Path, t5_model: Path) -> None:
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(str(t5_model))
    write_tokenizer(tmp_path, Tokenizer(read_sentencepiece(t5_model), 100), add_eos=False)
    assert_no_end_of_sequence(tmp_path, pieces.encode)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("<extra_id_0>").input_ids == [pieces.get_piece_size() + 99]


def test_verify_of_a_run_whose_inputs_had_no_end_of_sequence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = models.write_run(tmp_path / "run", data__inputs_add_eos=False), tmp_path / "out"
    assert convert.main([str(source), str(out), "--to", "hf", "--verify"]) == 0
    printed = capsys.readouterr().out
    assert "Verified: both tokenizers return the same ids" in printed
    assert "Inputs did not end with EOS in training" in printed
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer("to be").input_ids == [byte + 3 for byte in b"to be"]


def test_verify_with_a_vocabulary_of_pieces(
    tmp_path: Path, t5_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters(vocab_size=896))
    arguments = [str(source), str(tmp_path / "out"), "--to", "hf", "--verify"]
    assert convert.main([*arguments, "--vocabulary", str(t5_model)]) == 0
    printed = capsys.readouterr().out
    assert "on real text" in printed
    assert "the same ids" in printed
    assert (tmp_path / "out" / "spiece.model").is_file()
