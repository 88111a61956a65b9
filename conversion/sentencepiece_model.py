"""What a SentencePiece model file says, read with our own few lines.

The file is a protocol buffer (ModelProto of sentencepiece_model.proto): 1 pieces (1 piece, 2 score,
3 type), 2 trainer_spec (3 model_type, 35 byte_fallback), 3 normalizer_spec (2 charsmap, 3
add_dummy_prefix, 4 remove_extra_whitespaces, 5 escape_whitespaces).
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from conversion.errors import ConversionError

_CONTROL, _UNKNOWN = 3, 2
_UNIGRAM = 1
_SENTINEL = re.compile(r"▁?<extra_id_0>")


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """A unigram model with T5's special pieces: 0 padding, 1 end of sequence, 2 unknown.

    Attributes:
      path: of the model file.
      pieces: each with its score, by id.
      byte_fallback: unknown characters become pieces for their bytes.
      charsmap: the compiled normalization, as SentencePiece and `tokenizers` take it.
    """

    path: Path
    pieces: tuple[tuple[str, float], ...]
    byte_fallback: bool
    charsmap: bytes

    @property
    def has_sentinels(self) -> bool:
        """Whether the sentinels are pieces of the model, as in mT5's."""
        return any(_SENTINEL.fullmatch(piece) for piece, _ in self.pieces)


def read_sentencepiece(path: str | Path) -> SentencePieceModel:
    """Reads a model file.

    Raises:
      ConversionError: it is none, or not of the kind that T5 uses.
    """
    path = Path(path)
    if not path.is_file():
        raise ConversionError(f"There is no SentencePiece model at {path}.")
    pieces: list[tuple[str, float]] = []
    types: list[int] = []
    model_type, byte_fallback, charsmap = _UNIGRAM, False, b""
    whitespace = {3: 1, 4: 1, 5: 1}
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1 and isinstance(value, bytes):
                piece = dict(_fields(value))
                name, score = piece[1], piece.get(2, b"\0\0\0\0")
                assert isinstance(name, bytes) and isinstance(score, bytes)
                pieces.append((name.decode("utf-8"), struct.unpack("<f", score)[0]))
                types.append(int(piece.get(3, 1)))
            elif number == 2 and isinstance(value, bytes):
                trainer = dict(_fields(value))
                model_type = int(trainer.get(3, _UNIGRAM))
                byte_fallback = bool(trainer.get(35, False))
            elif number == 3 and isinstance(value, bytes):
                normalizer = dict(_fields(value))
                charsmap = bytes(normalizer.get(2, b""))
                whitespace = {key: int(normalizer.get(key, 1)) for key in whitespace}
    except (ValueError, IndexError, KeyError, TypeError, AssertionError, struct.error) as error:
        raise ConversionError(f"{path} is not a SentencePiece model.") from error
    if not pieces:
        raise ConversionError(f"{path} is not a SentencePiece model: it has no pieces.")
    if model_type != _UNIGRAM:
        raise ConversionError(f"{path} is a SentencePiece model of another kind than unigram.")
    if types[:3] != [_CONTROL, _CONTROL, _UNKNOWN]:
        raise ConversionError(
            f"{path}: pieces 0, 1 and 2 must be padding, end of sequence and unknown; "
            f"they are {', '.join(name for name, _ in pieces[:3])}."
        )
    if not all(whitespace.values()):
        raise ConversionError(
            f"{path} keeps white space as it is (add_dummy_prefix, remove_extra_whitespaces or "
            "escape_whitespaces is off), which T5's tokenizer cannot."
        )
    return SentencePieceModel(path, tuple(pieces), byte_fallback, charsmap)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the fields of a serialized message: number and value; fixed-size numbers as bytes."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if kind == 2:
            size, position = _varint(message, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"field of kind {kind}")
        if position + size > len(message):
            raise ValueError("cut off")
        yield key >> 3, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position
