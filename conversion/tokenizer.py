"""Tokenizer files for Hugging Face: the same ids as SentencePiece, or as ByT5's bytes.

For SentencePiece, `tokenizer.json` holds all that is needed, so that neither `sentencepiece` nor
`protobuf` has to be installed where the model is used; `spiece.model` lies beside it for older
versions and other tools. The JSON is written here because `tokenizers` cannot be had without
`huggingface-hub`, which exports do not need.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

from conversion.errors import ConversionError
from conversion.json_file import read_json, write_json
from conversion.sentencepiece_model import SentencePieceModel

_NUM_BYTES = 256
_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
# The class that does what tokenizer.json says; transformers 5 saves it under the second name.
_GENERIC = "PreTrainedTokenizerFast"
_FOLLOW_FILE = (_GENERIC, "TokenizersBackend")


@dataclasses.dataclass(frozen=True)
class Bytes:
    """ByT5's vocabulary: 3 special ids, 256 bytes, then `extra_ids` sentinels, the 0th one last."""

    extra_ids: int = 0

    @property
    def num_ids(self) -> int:
        """How many ids there are."""
        return len(_SPECIAL) + _NUM_BYTES + self.extra_ids


@dataclasses.dataclass(frozen=True)
class SentencePieces:
    """A SentencePiece model, then `extra_ids` sentinels, the 0th one last."""

    model: SentencePieceModel
    extra_ids: int

    @property
    def num_ids(self) -> int:
        """How many ids there are."""
        return len(self.model.pieces) + self.extra_ids


Tokenizer = Bytes | SentencePieces


def default_extra_ids(model: SentencePieceModel, vocab_size: int) -> int:
    """T5's 100 sentinels, unless they are pieces of the model or do not fit the embedding."""
    fits = len(model.pieces) + 100 <= vocab_size
    return 100 if fits and not model.has_sentinels else 0


def check_size(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises ConversionError unless every id has a row in the embedding."""
    if tokenizer.num_ids > vocab_size:
        raise ConversionError(
            f"The vocabulary has {tokenizer.num_ids} ids ({tokenizer.extra_ids} of them "
            f"sentinels), but the checkpoint's embedding only {vocab_size} rows."
        )


def write_tokenizer(directory: Path, tokenizer: Tokenizer, *, add_eos: bool = True) -> str:
    """Writes the tokenizer's files; returns the name of the class that will read them.

    Args:
      directory: exists.
      tokenizer: what to write.
      add_eos: whether the tokenizer appends end of sequence to a text. T5Tokenizer and
        ByT5Tokenizer always do, so without it the class is PreTrainedTokenizerFast, which follows
        tokenizer.json.
    """
    if isinstance(tokenizer, Bytes):
        name = "ByT5Tokenizer" if add_eos else _GENERIC
    else:
        # T5Tokenizer rebuilds itself without byte fallback, whatever tokenizer.json says.
        name = "T5Tokenizer" if add_eos and not tokenizer.model.byte_fallback else _GENERIC
        shutil.copyfile(tokenizer.model.path, directory / "spiece.model")
    sentinels = [f"<extra_id_{i}>" for i in range(tokenizer.extra_ids)]
    added = dict(zip(_SPECIAL.values(), itertools.count(), strict=False))
    added |= {text: tokenizer.num_ids - 1 - i for i, text in enumerate(sentinels)}
    config = {
        "tokenizer_class": name,
        **_SPECIAL,
        "extra_ids": tokenizer.extra_ids,
        "additional_special_tokens": sentinels,
        "model_max_length": 10**9,  # relative positions set no limit
        "clean_up_tokenization_spaces": False,
    }
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    tokens = {i: {"content": text, **flags, "special": True} for text, i in added.items()}
    if name == "ByT5Tokenizer":
        config["added_tokens_decoder"] = {str(i): token for i, token in tokens.items()}
    else:
        eos = [{"SpecialToken": {"id": "</s>", "type_id": 0}}] if add_eos else []
        first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        content = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, **tokens[i]} for i in sorted(tokens)],
            **(_bytes(added) if isinstance(tokenizer, Bytes) else _sentence_pieces(tokenizer)),
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [first, *eos],
                "pair": [first, *eos, second, *eos],
                "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
            },
        }
        write_json(directory / "tokenizer.json", content, indent=None)
    write_json(directory / "tokenizer_config.json", config)
    return name


def tokenizer_adds_eos(directory: Path) -> bool:
    """Returns whether the tokenizer of a Hugging Face directory appends end of sequence to a text.

    As transformers 5 reads it: T5Tokenizer and ByT5Tokenizer always do, other classes where the
    post-processor of tokenizer.json does. True where there is no tokenizer.

    Raises:
      ConversionError: a file is not JSON.
    """
    name = _read(directory / "tokenizer_config.json").get("tokenizer_class")
    if name not in _FOLLOW_FILE or not (directory / "tokenizer.json").is_file():
        return True
    template = _read(directory / "tokenizer.json").get("post_processor") or {}
    return any(
        piece.get("SpecialToken", {}).get("id") == _SPECIAL["eos_token"]
        for piece in template.get("single", ())
    )


def bytes_of(directory: Path) -> Bytes | None:
    """Returns the vocabulary of bytes of a Hugging Face directory; None: it has another, or none.

    ByT5's sentinels are its last ids, the 0th one last, where the directory's are so (ours are);
    else it has none, as in training, where they are 258 downward.

    Raises:
      ConversionError: a file is not JSON.
    """
    config = _read(directory / "tokenizer_config.json")
    if config.get("tokenizer_class") == "ByT5Tokenizer":
        added = {
            token.get("content"): int(number)
            for number, token in config.get("added_tokens_decoder", {}).items()
        }
    else:
        added = _read(directory / "tokenizer.json").get("model", {}).get("vocab", {})
        if not isinstance(added, dict) or added.get("<0x00>") != len(_SPECIAL):
            return None
    own = Bytes(int(config.get("extra_ids", 0)))
    return own if added.get("<extra_id_0>") == own.num_ids - 1 else Bytes()


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _bytes(added: dict[str, int]) -> dict[str, Any]:
    """Returns what ByT5Tokenizer does: no character is a piece, so each falls back to its bytes."""
    return {
        "normalizer": None,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "unk_token": _SPECIAL["unk_token"],
            "fuse_unk": False,
            "byte_fallback": True,
            "vocab": added | {f"<0x{i:02X}>": len(_SPECIAL) + i for i in range(_NUM_BYTES)},
            "merges": [],
        },
    }


def _sentence_pieces(tokenizer: SentencePieces) -> dict[str, Any]:
    """Returns what SentencePiece does."""
    model = tokenizer.model
    # The special tokens go by T5's names, whatever the model calls them.
    pieces = [[text, 0.0] for text in _SPECIAL.values()]
    pieces += [list(piece) for piece in model.pieces[len(_SPECIAL) :]]
    pieces += [[f"<extra_id_{i}>", 0.0] for i in reversed(range(tokenizer.extra_ids))]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    charsmap = base64.b64encode(model.charsmap).decode("ascii")
    normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap} if charsmap else None
    split = [{"type": "WhitespaceSplit"}, metaspace]
    joined = [{"type": "ByteFallback"}, metaspace, {"type": "Fuse"}]
    fallback = model.byte_fallback
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split},
        "decoder": {"type": "Sequence", "decoders": joined} if fallback else metaspace,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": fallback},
    }
