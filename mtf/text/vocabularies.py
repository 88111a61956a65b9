"""Vocabularies: text to ids and back, with SeqIO's ids and names.

A vocabulary is a small frozen value of a config; a SentencePiece model is read at first use, once.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mtf.errors import UserError, did_you_mean
from mtf.text.remote import is_remote, local_copy

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

# The released models' own, readable by everyone; their sentinels are pieces of both.
RELEASED_MODELS = {
    "t5": "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model",
    "mt5": "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model",
}

_NUM_BYTE_SPECIALS = 3
_FIRST_BYTE_OUTSIDE_UTF8 = 0xF5


class _ExtraIds:
    """What both kinds of vocabularies do with extra ids."""

    extra_ids: int

    def __post_init__(self) -> None:
        if self.extra_ids < 0:
            raise UserError(
                f"vocabulary.extra_ids: {self.extra_ids} is negative; expected 0 or more"
            )

    @property
    def vocab_size(self) -> int:
        """Number of ids, the extra ones included."""
        raise NotImplementedError

    def sentinel(self, index: int) -> int:
        """Returns the id of sentinel `index`, counted from 0: `vocab_size - 1 - index`."""
        size = self.vocab_size
        if not 0 <= index < size:
            raise UserError(f"there is no sentinel {index} in a vocabulary of {size} ids")
        return size - 1 - index


@dataclass(frozen=True)
class ByteVocabulary(_ExtraIds):
    """ByT5's ids: 0 padding, 1 end of sequence, 2 unknown, then byte + 3, then `extra_ids`.

    Without extra ids, sentinels descend from 258 as in ByT5. The first eleven of those ids are the
    bytes 0xFF to 0xF5, which no UTF-8 text holds, so they are shown as sentinels by `decode`; more
    than eleven sentinels share their ids with bytes of characters outside the basic plane, CJK, ….
    """

    extra_ids: int = 0

    pad_id: ClassVar[int] = 0
    eos_id: ClassVar[int] = 1
    unk_id: ClassVar[int] = 2

    @property
    def vocab_size(self) -> int:
        """Number of ids: 259 and the extra ones."""
        return _NUM_BYTE_SPECIALS + 256 + self.extra_ids

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the UTF-8 bytes of `text`, without end of sequence."""
        return [byte + _NUM_BYTE_SPECIALS for byte in text.encode("utf-8", errors="replace")]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first end of sequence (SeqIO: `Vocabulary.decode`).

        Sentinels read `<extra_id_N>`, which SeqIO drops. Padding, unknown, ids over the range and
        bytes that are not UTF-8 vanish.
        """
        num_sentinels = self.extra_ids or 256 - _FIRST_BYTE_OUTSIDE_UTF8
        first_sentinel = self.vocab_size - num_sentinels
        parts = bytearray()
        for i in _up_to(self.eos_id, ids):
            if first_sentinel <= i < self.vocab_size:
                parts += _sentinel_text(self.vocab_size - 1 - int(i)).encode()
            elif _NUM_BYTE_SPECIALS <= i < first_sentinel:
                parts.append(int(i) - _NUM_BYTE_SPECIALS)
        return parts.decode("utf-8", errors="ignore")

    def fingerprint(self) -> str:
        """Returns a short name of what this vocabulary maps to what."""
        return f"byte+{self.extra_ids}"


@dataclass(frozen=True)
class SentencePieceVocabulary(_ExtraIds):
    """A SentencePiece model file, and `extra_ids` sentinels after its pieces.

    `path` is a local file, or `gs://…`, which is downloaded once into the user's cache.

    As in SeqIO the extra ids are pieces `<extra_id_N>`, the 0th one last: the text `<extra_id_0>`
    is encoded as one id. Where they are pieces of the model already, none are added.
    """

    path: str = field(metadata={"path": True})
    extra_ids: int = 100

    pad_id: ClassVar[int] = 0

    @property
    def vocab_size(self) -> int:
        """Number of ids: the pieces of the model and the extra ones."""
        return int(self._model.get_piece_size())

    @property
    def eos_id(self) -> int:
        """Id of the end of sequence."""
        return int(self._model.eos_id())

    @property
    def unk_id(self) -> int:
        """Id of the unknown piece."""
        return int(self._model.unk_id())

    @property
    def file(self) -> Path:
        """The model file on this machine; one under gs:// is downloaded first."""
        return _local_file(self.path)

    @property
    def num_added_ids(self) -> int:
        """How many of `extra_ids` are not pieces of the model already: all or none."""
        return self.vocab_size - int(_load_sentencepiece(self.path, 0).get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without end of sequence."""
        # JSON can hold halves of surrogate pairs, which SentencePiece does not take.
        ids: list[int] = self._model.encode(text.encode("utf-8", errors="replace").decode())
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first end of sequence (SeqIO: `Vocabulary.decode`).

        Sentinels read `<extra_id_N>`. Padding vanishes; ids over the range read as the unknown
        piece.
        """
        unk, size = self.unk_id, self.vocab_size
        before_end = _up_to(self.eos_id, ids)
        known = [int(i) if i < size else unk for i in before_end if i != self.pad_id]
        text: str = self._model.decode(known)
        return text

    def fingerprint(self) -> str:
        """Returns a hash of the model file's content, and the number of extra ids."""
        return f"sentencepiece:{_sentencepiece_hash(self.path)}+{self.num_added_ids}"

    @property
    def _model(self) -> SentencePieceProcessor:
        return _load_sentencepiece(self.path, self.extra_ids)


Vocabulary = ByteVocabulary | SentencePieceVocabulary


def _up_to(eos_id: int, ids: Iterable[int]) -> Iterable[int]:
    """Returns the ids before the first end of sequence."""
    return itertools.takewhile(lambda i: i != eos_id, ids)


def _sentinel_text(index: int) -> str:
    return f"<extra_id_{index}>"


def _local_file(path: str) -> Path:
    return local_copy(path) if is_remote(path) else Path(path).expanduser()


def _read_model(path: str) -> bytes:
    """Returns the bytes of a model file; raises UserError where there is none."""
    file = _local_file(path)
    if not file.is_file():
        names = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        missing = "is a directory" if file.is_dir() else "does not exist"
        raise UserError(
            f"SentencePiece model {file.absolute()} {missing}.{did_you_mean(file.name, names)}"
        )
    return file.read_bytes()


@functools.lru_cache(maxsize=8)
def _sentencepiece_hash(path: str) -> str:
    return hashlib.sha256(_read_model(path)).hexdigest()[:16]


@functools.lru_cache(maxsize=8)
def _load_sentencepiece(path: str, extra_ids: int) -> SentencePieceProcessor:
    from sentencepiece import SentencePieceProcessor

    content = _read_model(path)
    # A serialized model is a protocol buffer, and joining two of those joins their repeated
    # fields: what follows the file's own pieces here become further pieces.
    extra = b"".join(_serialized_piece(f"▁{_sentinel_text(i)}") for i in reversed(range(extra_ids)))
    processor = SentencePieceProcessor()
    try:
        if not content:
            raise RuntimeError("the file is empty")
        processor.load_from_serialized_proto(content)
        if extra and processor.piece_to_id(f"▁{_sentinel_text(0)}") == processor.unk_id():
            processor.load_from_serialized_proto(content + extra)
    except RuntimeError as error:
        raise UserError(f"{path} is not a SentencePiece model: {error}") from error
    return processor


def _serialized_piece(piece: str) -> bytes:
    """Returns ModelProto.pieces (field 1) with the piece (1), score 0 (2), USER_DEFINED (3)."""
    name = piece.encode()
    message = b"\x0a" + bytes([len(name)]) + name + b"\x15\x00\x00\x00\x00" + b"\x18\x04"
    return b"\x0a" + bytes([len(message)]) + message
