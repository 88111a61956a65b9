"""Reads the pieces, scores and normalization rules in a SentencePiece model file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from google.protobuf.message import DecodeError

from conversion.protobuf import message_class
from conversion.tensor import ConversionError

_CONTROL, _UNKNOWN = 3, 2
_UNIGRAM = 1

# The fields of sentencepiece_model.proto that a tokenizer needs.
_ModelProto = message_class(
    "mtf.sentencepiece",
    {
        "Piece": {1: "string piece", 2: "float score", 3: "int32 type = 1"},
        "TrainerSpec": {3: "int32 model_type = 1", 35: "bool byte_fallback"},
        "NormalizerSpec": {
            2: "bytes precompiled_charsmap",
            3: "bool add_dummy_prefix = true",
            4: "bool remove_extra_whitespaces = true",
            5: "bool escape_whitespaces = true",
        },
        "ModelProto": {
            1: "repeated Piece pieces",
            2: "TrainerSpec trainer_spec",
            3: "NormalizerSpec normalizer_spec",
        },
    },
)


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """A unigram model with T5's special ids: 0 for padding, 1 for EOS, 2 for unknown.

    Attributes:
      path: path of the model file.
      pieces: the (piece, score) pairs, in the order of their ids.
      byte_fallback: whether unknown characters are replaced with pieces for their bytes.
      charsmap: the compiled normalization rules, in SentencePiece's binary format.
    """

    path: Path
    pieces: tuple[tuple[str, float], ...]
    byte_fallback: bool
    charsmap: bytes


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Reads a SentencePiece model file; raises ConversionError if T5 cannot use the model."""
    if not path.is_file():
        raise ConversionError(f"There is no SentencePiece model at {path}.")
    try:
        proto = _ModelProto.FromString(path.read_bytes())
        pieces = tuple((piece.piece, piece.score) for piece in proto.pieces)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ConversionError(f"{path} is not a SentencePiece model.") from error
    if not pieces:
        raise ConversionError(f"{path} is not a SentencePiece model: it has no pieces.")
    if proto.trainer_spec.model_type != _UNIGRAM:
        raise ConversionError(
            f"{path} is a SentencePiece model, but not a unigram model, which T5 needs."
        )
    if [piece.type for piece in proto.pieces[:3]] != [_CONTROL, _CONTROL, _UNKNOWN]:
        raise ConversionError(
            f"{path}: expected the padding, EOS and unknown pieces at ids 0, 1 and 2, but found "
            f"{', '.join(name for name, _ in pieces[:3])}."
        )
    normalizer = proto.normalizer_spec
    switches = ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces")
    if not all(getattr(normalizer, name) for name in switches):
        raise ConversionError(
            f"{path} does not normalize whitespace as T5's tokenizer does; expected a model that "
            "was trained with add_dummy_prefix, remove_extra_whitespaces and escape_whitespaces."
        )
    charsmap = normalizer.precompiled_charsmap
    return SentencePieceModel(path, pieces, proto.trainer_spec.byte_fallback, charsmap)
