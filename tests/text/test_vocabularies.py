"""Vocabularies against SeqIO's and ByT5's published ids."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from mtf.base.errors import UserError
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary
from tests import made_up
from tests.small import python


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SentencePiece model of 40 pieces with T5's special ids."""
    file = tmp_path_factory.mktemp("vocabulary") / "small.model"
    texts = ["the cat sat on the mat", "a dog ran to the park"] * 20
    file.write_bytes(made_up.sentencepiece_model(texts, num_pieces=40))
    return str(file)


def test_byte_ids_are_byt5s() -> None:
    vocabulary = ByteVocabulary()
    assert vocabulary.vocab_size == 259
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    assert vocabulary.encode("Aé") == [ord("A") + 3, 0xC3 + 3, 0xA9 + 3]
    assert ByteVocabulary(extra_ids=125).vocab_size == 384


@given(text=st.text())
def test_bytes_keep_every_text(text: str) -> None:
    vocabulary = ByteVocabulary()
    assert vocabulary.decode([*vocabulary.encode(text), 1, 0, 0]) == text


def test_bytes_show_sentinels_and_drop_what_is_no_text() -> None:
    assert ByteVocabulary().decode([100, 258, 101, 257, 102, 0, 2, 9999]) == (
        "a<extra_id_0>b<extra_id_1>c"
    )
    assert ByteVocabulary(extra_ids=10).decode([268, 100, 259, 258]) == "<extra_id_0>a<extra_id_9>"
    assert ByteVocabulary().decode([100, 0xC3 + 3, 101]) == "ab"  # half a character


def test_nothing_is_decoded_behind_the_end_of_sequence(small_model: str) -> None:
    # SeqIO's Vocabulary.decode: "Detokenizes int32 iterable to a string, up through first EOS."
    a, b = (ord(letter) + 3 for letter in "ab")
    for ids, text in [([a, 1, b], "a"), ([a, 0, b, 1, 0, a, 1, b], "ab"), ([1, a], "")]:
        assert ByteVocabulary().decode(ids) == text
        assert ByteVocabulary(5).decode(iter(ids)) == text
    vocabulary = SentencePieceVocabulary(small_model)
    cat, dog = vocabulary.encode("cat"), vocabulary.encode("dog")
    assert vocabulary.decode([*cat, 1, *dog]) == "cat"
    assert vocabulary.decode(np.array([0, *cat, 0, *dog, 0, 1, *dog, 10**6])) == "cat dog"
    assert vocabulary.decode([1, *dog]) == ""


def test_sentinels_descend_from_the_last_id() -> None:
    assert [ByteVocabulary().sentinel(i) for i in (0, 1)] == [258, 257]
    with pytest.raises(UserError, match="extra_ids must be at least 0, not -1"):
        ByteVocabulary(extra_ids=-1)


def test_extra_ids_follow_the_pieces_of_a_model(small_model: str) -> None:
    plain = sentencepiece.SentencePieceProcessor(model_file=small_model)
    vocabulary = SentencePieceVocabulary(small_model, extra_ids=7)
    size = plain.get_piece_size()
    assert vocabulary.vocab_size == size + 7
    assert vocabulary.encode("the cat sat") == plain.encode("the cat sat")
    assert vocabulary.decode(plain.encode("a dog ran")) == "a dog ran"
    ids = vocabulary.encode("the <extra_id_0> sat <extra_id_6>")
    assert [i for i in ids if i >= size] == [size + 6, size]
    assert vocabulary.sentinel(0) == size + 6
    assert vocabulary.decode([*ids, 1, 0, 0]) == "the <extra_id_0> sat <extra_id_6>"
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)


def test_half_a_surrogate_pair_is_a_question_mark(small_model: str) -> None:
    vocabulary = SentencePieceVocabulary(small_model)
    assert vocabulary.encode("cat \ud800") == vocabulary.encode("cat ?")
    assert ByteVocabulary().decode(ByteVocabulary().encode("cat \ud800")) == "cat ?"


def test_a_missing_model_is_named_with_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(UserError, match=r"spice\.model does not exist\. Did you mean spiece\.mod"):
        _ = SentencePieceVocabulary(str(tmp_path / "spice.model")).vocab_size


@pytest.mark.parametrize("content", [b"", b"this is not a model", b"\x00\x01\x02"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.model is not a SentencePiece model"):
        SentencePieceVocabulary(str(path)).encode("text")


def test_sentinels_that_are_pieces_of_the_model_are_not_added_again(
    small_model: str, tmp_path: Path
) -> None:
    # As T5's `cc_all.32000.100extra`: the model with its extra ids as user-defined pieces.
    proto = sentencepiece_model_pb2.ModelProto.FromString(Path(small_model).read_bytes())
    for index in reversed(range(7)):
        proto.pieces.add(piece=f"▁<extra_id_{index}>", score=0.0, type=4)
    path = tmp_path / "with_sentinels.model"
    path.write_bytes(proto.SerializeToString())
    added = SentencePieceVocabulary(small_model, extra_ids=7)
    text = "the <extra_id_0> sat <extra_id_6>"
    for extra_ids in (0, 7):
        found = SentencePieceVocabulary(str(path), extra_ids)
        assert found.vocab_size == added.vocab_size
        assert found.encode(text) == added.encode(text)
        assert found.decode(found.encode(text)) == text
        assert found.num_added_ids == 0
        assert found.fingerprint() == SentencePieceVocabulary(str(path), 0).fingerprint()
    assert added.num_added_ids == 7


def test_fingerprints_tell_vocabularies_apart(tmp_path: Path, small_model: str) -> None:
    copy = shutil.copy(small_model, tmp_path / "copy.model")
    model = SentencePieceVocabulary(small_model)
    assert SentencePieceVocabulary(str(copy)).fingerprint() == model.fingerprint()
    without = SentencePieceVocabulary(small_model, extra_ids=0)
    names = {each.fingerprint() for each in (model, without, ByteVocabulary(), ByteVocabulary(100))}
    assert len(names) == 4


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("mtf.data.settings", "numpy sentencepiece jax tensorflow"),
        ("mtf.data.loaders", "sentencepiece jax tensorflow"),
        ("mtf.data.tasks.mixtures", "jinja2 yaml pyarrow datasets numpy jax tensorflow seqio"),
        ("mtf.evaluation.seqio_registry", "tensorflow seqio"),
    ],
)
def test_imports_are_light(module: str, absent: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {absent.split()} if m in sys.modules])"
    assert python("-c", code).stdout.split() == []
