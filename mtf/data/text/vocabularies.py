"""Defines vocabularies, two of them with SeqIO's ids and names. Files are loaded when needed."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from mtf.base.checks import AT_LEAST_ZERO, check_fields
from mtf.base.downloads import as_user_errors, downloaded
from mtf.base.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.base.extras import import_extra
from mtf.storage import as_path

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer

# Vocabularies of the released models. Both contain their sentinels as pieces.
RELEASED_MODELS = {
    "t5": "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model",
    "mt5": "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model",
}

_NUM_BYTE_SPECIALS = 3
_FIRST_BYTE_OUTSIDE_UTF8 = 0xF5


class _ExtraIds:
    extra_ids: int

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ZERO, "extra_ids")

    @property
    def vocab_size(self) -> int:
        """The number of ids, including extra ids."""
        raise NotImplementedError

    def sentinel(self, index: int) -> int:
        """Returns the id of `<extra_id_INDEX>`, which is `vocab_size - 1 - index`."""
        return self.vocab_size - 1 - index


@dataclass(frozen=True)
class ByteVocabulary(_ExtraIds):
    """ByT5's vocabulary: padding (0), EOS (1), unknown (2), the bytes (byte + 3), and extra ids.

    Without extra ids, sentinels descend from 258 as in ByT5. The first eleven sentinels have the
    ids of the bytes 0xFF to 0xF5, which never occur in UTF-8, so `decode` shows them as sentinels.
    Further sentinels share their ids with bytes that occur in multi-byte characters.

    Attributes:
      extra_ids: number of sentinels after the bytes.
    """

    extra_ids: int = 0

    pad_id: ClassVar[int] = 0
    eos_id: ClassVar[int] = 1
    unk_id: ClassVar[int] = 2
    path: ClassVar[str] = "byt5"  # Used in place of a path in caches and messages.

    @property
    def vocab_size(self) -> int:
        """The number of ids, including extra ids."""
        return _NUM_BYTE_SPECIALS + 256 + self.extra_ids

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the UTF-8 bytes of `text`, without EOS."""
        return [byte + _NUM_BYTE_SPECIALS for byte in text.encode("utf-8", errors="replace")]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first EOS, like SeqIO's `Vocabulary.decode`.

        Sentinels become `<extra_id_N>`, whereas SeqIO drops them. The ids for padding and unknown,
        ids out of range, and bytes that are not valid UTF-8 are dropped.
        """
        num_sentinels = self.extra_ids or 256 - _FIRST_BYTE_OUTSIDE_UTF8
        first_sentinel = self.vocab_size - num_sentinels
        parts = bytearray()
        for i in itertools.takewhile(lambda i: i != self.eos_id, ids):
            if first_sentinel <= i < self.vocab_size:
                parts += f"<extra_id_{self.vocab_size - 1 - int(i)}>".encode()
            elif _NUM_BYTE_SPECIALS <= i < first_sentinel:
                parts.append(int(i) - _NUM_BYTE_SPECIALS)
        return parts.decode("utf-8", errors="ignore")

    def fingerprint(self) -> str:
        """Returns a short string that identifies the mapping of text to ids."""
        return f"byte+{self.extra_ids}"


@dataclass(frozen=True)
class SentencePieceVocabulary(_ExtraIds):
    """A SentencePiece model whose pieces are followed by `extra_ids` sentinels.

    As in SeqIO, the sentinels are pieces `<extra_id_N>`, and `<extra_id_0>` has the last id. If the
    model already contains sentinels, none are added.

    Attributes:
      path: local or remote path (`gs://`, `s3://` or `https://`) of the model file. A remote file
        is downloaded once.
      extra_ids: number of sentinels.
    """

    path: str = field(metadata={"path": True})
    extra_ids: int = 100

    pad_id: ClassVar[int] = 0

    @property
    def vocab_size(self) -> int:
        """The number of ids, including extra ids."""
        return int(self._model.get_piece_size())

    @property
    def eos_id(self) -> int:
        """The id of EOS."""
        return int(self._model.eos_id())

    @property
    def unk_id(self) -> int:
        """The id of the unknown piece."""
        return int(self._model.unk_id())

    @property
    def file(self) -> Path:
        """The path of the model file on this machine; a remote file is downloaded first."""
        return downloaded(self.path, "vocabulary")

    @property
    def num_added_ids(self) -> int:
        """The number of extra ids added to the model, or 0 if the model already contains them."""
        return self.vocab_size - int(_load_sentencepiece(self.path, 0).get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without EOS."""
        # JSON can contain half of a surrogate pair, which SentencePiece rejects.
        return self._model.encode(text.encode("utf-8", errors="replace").decode())

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first EOS, like SeqIO's `Vocabulary.decode`.

        Sentinels become `<extra_id_N>`, ids out of range become the unknown piece, and padding is
        dropped.
        """
        eos, unk, size = self.eos_id, self.unk_id, self.vocab_size
        before_eos = itertools.takewhile(lambda i: i != eos, ids)
        known = [int(i) if i < size else unk for i in before_eos if i != self.pad_id]
        return self._model.decode(known)

    def fingerprint(self) -> str:
        """Returns a string that contains a hash of the model file and the number of added ids."""
        return f"sentencepiece:{_sentencepiece_hash(self.path)}+{self.num_added_ids}"

    @property
    def _model(self) -> SentencePieceProcessor:
        return _load_sentencepiece(self.path, self.extra_ids)


@dataclass(frozen=True)
class TokenizerVocabulary:
    """A tokenizer of the package `tokenizers` (extra `tokenizers`), such as CodeT5's or Pile-T5's.

    Attributes:
      path: local or remote path of `tokenizer.json`, or of a `vocab.json` beside `merges.txt`.
      bos_token: the token with which each text begins, as in CodeT5; None for no such token.
      eos_token: the token with which sequences end.
    """

    path: str = field(metadata={"path": True})
    bos_token: str | None = None
    eos_token: str = "</s>"

    extra_ids: ClassVar[int] = 0  # Sentinels, if any, are in the file.
    pad_id: ClassVar[int] = 0

    @property
    def vocab_size(self) -> int:
        """The greatest id plus 1."""
        return self._loaded.num_ids

    @property
    def eos_id(self) -> int:
        """The id of EOS."""
        return self._id(self.eos_token)

    def sentinel(self, index: int) -> int:
        """Returns the id of `<extra_id_INDEX>`; without sentinels, of the last piece but INDEX."""
        return self._loaded.ids.get("<extra_id_0>", self.vocab_size - 1) - index

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text` after those of BOS, if there is one, and without EOS."""
        text = text.encode("utf-8", errors="replace").decode()
        ids: list[int] = self._loaded.tokenizer.encode(text, add_special_tokens=False).ids
        return ids if self.bos_token is None else [self._id(self.bos_token), *ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first EOS.

        As in `transformers` with `skip_special_tokens=True`, special tokens are dropped, but
        sentinels become `<extra_id_N>`. Ids out of range and padding are dropped, too.
        """
        eos, hidden = self.eos_id, self._loaded.hidden
        kept = [int(i) for i in itertools.takewhile(lambda i: i != eos, ids) if i not in hidden]
        return str(self._loaded.tokenizer.decode(kept, skip_special_tokens=False))

    def fingerprint(self) -> str:
        """Returns a string that contains a hash of the tokenizer and its special tokens."""
        content = f"{self._loaded.digest} {self.bos_token} {self.eos_token}"
        return f"tokenizer:{hashlib.sha256(content.encode()).hexdigest()[:16]}+0"

    def _id(self, token: str) -> int:
        if token not in self._loaded.ids:
            hint = did_you_mean(token, self._loaded.hidden.values())
            raise UserError(f"{self.path} has no token {token!r}.{hint}")
        return self._loaded.ids[token]

    @property
    def _loaded(self) -> _Loaded:
        return _load_tokenizer(self.path)


Vocabulary = ByteVocabulary | SentencePieceVocabulary | TokenizerVocabulary


def open_vocabulary(path: str, extra_ids: int = 0) -> Vocabulary:
    """Returns the vocabulary at a path.

    Args:
      path: "byt5"; the path of a `tokenizer.json` or `vocab.json`, whose special tokens are read
        from the files beside it; or the path of a SentencePiece model.
      extra_ids: number of sentinels to add to bytes or to a SentencePiece model.
    """
    if path == ByteVocabulary.path:
        return ByteVocabulary(extra_ids)
    if path.endswith(".json"):
        from conversion.tokenizer_file import TokenizerFile  # This module imports NumPy.

        with as_user_errors("vocabulary"), conversion_as_user_errors():
            file = TokenizerFile.open(as_path(path))
        return TokenizerVocabulary(path, file.bos_token, file.eos_token)
    return SentencePieceVocabulary(path, extra_ids)


def _read_model(path: str) -> bytes:
    file = SentencePieceVocabulary(path).file
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
    # Concatenating two serialized protocol buffers appends the new pieces to those of the model.
    extra = b"".join(_serialized_piece(f"▁<extra_id_{i}>") for i in reversed(range(extra_ids)))
    processor = SentencePieceProcessor()
    try:
        if not content:
            raise RuntimeError("the file is empty")
        processor.load_from_serialized_proto(content)
        if extra and processor.piece_to_id("▁<extra_id_0>") == processor.unk_id():
            processor.load_from_serialized_proto(content + extra)
    except RuntimeError as error:
        raise UserError(f"{path} is not a SentencePiece model: {error}") from error
    return processor


def _serialized_piece(piece: str) -> bytes:
    """Returns a serialized entry of ModelProto.pieces with score 0 and type USER_DEFINED."""
    name = piece.encode()
    message = b"\x0a" + bytes([len(name)]) + name + b"\x15\x00\x00\x00\x00" + b"\x18\x04"
    return b"\x0a" + bytes([len(message)]) + message


class _Loaded(NamedTuple):
    """A tokenizer of the package `tokenizers`.

    Attributes:
      tokenizer: the tokenizer, which neither pads, truncates nor adds special tokens.
      ids: dict mapping tokens to their ids.
      hidden: dict mapping the ids of special tokens, except sentinels, to the tokens.
      num_ids: the greatest id plus 1.
      digest: a hash of the tokenizer.
    """

    tokenizer: Tokenizer
    ids: dict[str, int]
    hidden: dict[int, str]
    num_ids: int
    digest: str


@functools.lru_cache(maxsize=8)
def _load_tokenizer(path: str) -> _Loaded:
    from conversion.tokenizer_file import read_content

    tokenizers = import_extra("tokenizers", f"Reading {path}", "tokenizers")
    with as_user_errors("vocabulary"), conversion_as_user_errors():
        content = read_content(as_path(path))
    of_calls = {"truncation": None, "padding": None, "post_processor": None}
    serialized = json.dumps(content | of_calls)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(serialized)
    except Exception as error:  # The package raises no other class.
        raise UserError(f"{path} is not a tokenizer: {error}") from error
    special = {i: x.content for i, x in tokenizer.get_added_tokens_decoder().items() if x.special}
    hidden = {i: text for i, text in special.items() if not text.startswith("<extra_id_")}
    hidden.setdefault(TokenizerVocabulary.pad_id, "")
    digest = hashlib.sha256(serialized.encode()).hexdigest()
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return _Loaded(tokenizer, ids, hidden, 1 + max(ids.values()), digest)
