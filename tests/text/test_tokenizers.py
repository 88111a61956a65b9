"""Tokenizers of the package `tokenizers`, as in CodeT5, UL2, Pile-T5 and MADLAD-400."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data import SpanCorruption, TextFilesConfig, TokenizerVocabulary, loaders
from mtf.data.text.vocabularies import open_vocabulary
from tests import hub_models

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
