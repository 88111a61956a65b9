"""Tokenizers of the package `tokenizers`, as in CodeT5, UL2, Pile-T5 and MADLAD-400."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from conversion.tokenizer import tokenizer_adds_eos
from conversion.tokenizer_file import TokenizerFile, find_tokenizer
from mtf.base.errors import UserError
from mtf.data import SpanCorruption, TextFilesConfig, TokenizerVocabulary, loaders
from mtf.data.text.vocabularies import open_vocabulary
from mtf.inference import opening
from tests import hub_models
from tests.cache.helpers import data, write_cache

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

# Name → the ids of BOS and EOS, and whether the tokenizer has sentinels.
SPECIAL = {
    "Salesforce/codet5-base": ([1], 2, True),
    "Salesforce/codet5p-770m": ([1], 2, True),
    "google/ul2": ([], 1, True),
    "EleutherAI/pile-t5-base": ([], 2, True),
    "google/madlad400-3b-mt": ([], 2, False),
}
Opened = tuple[TokenizerVocabulary, Any]


@pytest.fixture(scope="module", params=SPECIAL)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = hub_models.write_tokenizer(folder, request.param)
    name = "vocab.json" if request.param == "Salesforce/codet5-base" else "tokenizer.json"
    vocabulary = open_vocabulary(str(folder / name))
    assert isinstance(vocabulary, TokenizerVocabulary)
    bos, eos, has_sentinels = SPECIAL[request.param]
    assert (vocabulary.encode(""), vocabulary.eos_id, vocabulary.pad_id) == (bos, eos, 0)
    assert vocabulary.vocab_size == tokenizer.get_vocab_size()
    if has_sentinels:
        assert vocabulary.sentinel(0) == tokenizer.token_to_id("<extra_id_0>")
        assert vocabulary.sentinel(99) == tokenizer.token_to_id("<extra_id_99>")
    return vocabulary, tokenizer


@pytest.mark.parametrize("text", hub_models.TEXTS)
def test_ids_are_those_of_the_library(opened: Opened, text: str) -> None:
    vocabulary, tokenizer = opened
    bos = [tokenizer.token_to_id(vocabulary.bos_token)] if vocabulary.bos_token else []
    ids = vocabulary.encode(text)
    assert ids == bos + tokenizer.encode(text, add_special_tokens=False).ids
    if "<" not in text:
        assert vocabulary.decode([*ids, vocabulary.eos_id, 7]) == tokenizer.decode(ids)


def test_decoding_shows_sentinels_and_hides_other_special_tokens(opened: Opened) -> None:
    vocabulary, tokenizer = opened
    words = vocabulary.encode("return value")
    text = tokenizer.decode(words)
    assert vocabulary.decode([0, *words, 0, 10**6, vocabulary.eos_id, *words]) == text
    if tokenizer.token_to_id("<extra_id_0>"):
        assert vocabulary.decode([*words, vocabulary.sentinel(1)]) == f"{text}<extra_id_1>"


def test_half_a_surrogate_pair(opened: Opened) -> None:
    assert opened[0].encode("a\ud800b") == opened[0].encode("a?b")


def test_a_directory_whose_tokenizer_json_describes_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = hub_models.write_tokenizer(tmp_path, "google/madlad400-3b-mt")
    # MADLAD-400's SentencePiece model has the special ids of SentencePiece, not those of T5.
    prefix = str(tmp_path / "spiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"]), model_prefix=prefix, vocab_size=7, minloglevel=2
    )
    vocabulary = opening.huggingface_vocabulary(tmp_path, hub_models.NUM_ROWS)
    assert vocabulary == TokenizerVocabulary(str(tmp_path / "tokenizer.json"))
    assert vocabulary.encode("return x") == tokenizer.encode("return x").ids[:-1]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="expected the padding, EOS and unknown pieces"):
        opening.huggingface_vocabulary(tmp_path, hub_models.NUM_ROWS)


def test_pile_t5_is_not_taken_for_byt5(tmp_path: Path) -> None:
    hub_models.write_tokenizer(tmp_path, "EleutherAI/pile-t5-base")  # whose <0x00> has the id 3
    found = opening.huggingface_vocabulary(tmp_path, hub_models.NUM_ROWS)
    assert found == TokenizerVocabulary(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("name", SPECIAL)
def test_an_exported_tokenizer_ends_inputs_as_in_training(name: str, tmp_path: Path) -> None:
    there, text = tmp_path / "there", "return x"
    expected = hub_models.write_tokenizer(there, name).encode(text).ids
    path = find_tokenizer(there)
    assert path is not None
    for add_eos, ids in ((True, expected), (False, expected[:-1])):
        out = tmp_path / str(add_eos)
        out.mkdir()
        TokenizerFile.open(path).write(out, add_eos=add_eos)
        written = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
        assert written.encode(text).ids == ids
        assert tokenizer_adds_eos(out) == add_eos
        assert open_vocabulary(str(out / "tokenizer.json")).encode(text) == expected[:-1]
    pair = tokenizers.Tokenizer.from_file(str(tmp_path / "True" / "tokenizer.json"))
    assert pair.encode(text, text).ids[: len(expected)] == expected


def test_spans_become_the_sentinels_of_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = hub_models.write_tokenizer(tmp_path, "Salesforce/codet5p-770m")
    tokenizer.add_tokens(["<vulnerable>"])  # behind the sentinels
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("\n".join(hub_models.TEXTS[0] for _ in range(40)))
    settings = TextFilesConfig(
        files=str(tmp_path / "text.txt"),
        vocabulary=open_vocabulary(str(tmp_path / "tokenizer.json")),
        task_feature_lengths={"inputs": 16, "targets": 16},
        objective=SpanCorruption(),
    )
    batch = next(loaders.make_train_iterator(settings, batch_size=2))
    first = tokenizer.token_to_id("<extra_id_0>")
    assert settings.vocabulary.vocab_size == first + 2
    assert (batch["decoder_target_tokens"][:, 0] == first).any()


def test_a_fingerprint_is_that_of_what_encodes(tmp_path: Path) -> None:
    tokenizer = hub_models.write_tokenizer(tmp_path, "google/ul2")
    path = str(tmp_path / "tokenizer.json")
    first = TokenizerVocabulary(path)
    found = first.fingerprint()
    assert found.endswith("+0")
    assert TokenizerVocabulary(path, bos_token="<pad>").fingerprint() != found
    tokenizer.enable_truncation(5)  # which training does on its own
    tokenizer.save(str(tmp_path / "short.json"))
    short = TokenizerVocabulary(str(tmp_path / "short.json"))
    assert short.fingerprint() == found
    assert short.encode("return " * 9) == first.encode("return " * 9)
    tokenizer.add_tokens(["another"])
    tokenizer.save(str(tmp_path / "more.json"))
    assert TokenizerVocabulary(str(tmp_path / "more.json")).fingerprint() != found


def test_a_token_cache_is_for_the_tokenizer_that_wrote_it(tmp_path: Path) -> None:
    hub_models.write_tokenizer(tmp_path, "Salesforce/codet5p-770m")
    vocabulary = open_vocabulary(str(tmp_path / "tokenizer.json"))
    cache_dir = write_cache(tmp_path, vocabulary=vocabulary)
    batches = loaders.make_train_iterator(data(cache_dir, vocabulary=vocabulary), batch_size=4)
    assert (next(batches)["encoder_input_tokens"][:, 0] == 1).all()  # <s>
    with pytest.raises(UserError, match=r"was made with tokenizer:.*not with byte\+0"):
        loaders.make_train_iterator(data(cache_dir), batch_size=4)


def test_what_cannot_be_read_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, **tokens: str) -> str:
        with pytest.raises(UserError) as caught:
            _ = TokenizerVocabulary(str(path), **tokens).eos_id
        return str(caught.value)

    hub_models.write_tokenizer(tmp_path, "google/ul2")
    path, other = tmp_path / "tokenizer.json", tmp_path / "other.json"
    assert refused(other) == f"{tmp_path} has no file other.json."
    assert refused(path, eos_token="<eos>").startswith(f"{path} has no token '<eos>'.")
    for content, message in [
        ("{", "is not JSON"),
        ("{}", "no field model.vocab"),
        ('{"model": {"vocab": 3}}', "is not a tokenizer: "),
    ]:
        other.write_text(content)
        assert message in refused(other)
        other = other.with_name(f"another_{other.name}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "run: pip install 'mtf-jax[tokenizers]'" in refused(path.rename(tmp_path / "new.json"))
