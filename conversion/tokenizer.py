"""Writes Hugging Face tokenizer files for a SentencePiece model or ByT5's byte vocabulary.

`tokenizer.json` contains the complete tokenizer, so `transformers` can load it without the packages
`sentencepiece` and `protobuf`. `spiece.model` is written for older versions of `transformers` and
for other tools. The package `tokenizers` is not used, because it requires `huggingface-hub`.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
from typing import Any

from conversion.json_file import read_json, write_json
from conversion.sentencepiece_model import SentencePieceModel
from conversion.tokenizer_file import (
    FILES,
    GENERIC,
    TOKEN_FLAGS,
    TokenizerFile,
    find_tokenizer,
    follows_file,
    template,
)
from mtf.storage import AnyPath

TOKENIZER_FILES = (*FILES, "spiece.model")
_NUM_BYTES = 256
# T5 has no maximum length. This value also identifies the tokenizers that mtf has written.
_MAX_LENGTH = 10**9
_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary followed by sentinels, of which sentinel 0 has the last id.

    Attributes:
      model: SentencePiece model, or None for ByT5's vocabulary of 3 special ids and 256 bytes.
      extra_ids: number of sentinels.
    """

    model: SentencePieceModel | None = None
    extra_ids: int = 0

    @property
    def num_ids(self) -> int:
        """The number of ids, including the sentinels."""
        own = len(_SPECIAL) + _NUM_BYTES if self.model is None else len(self.model.pieces)
        return own + self.extra_ids


def default_extra_ids(model: SentencePieceModel, vocab_size: int) -> int:
    """Returns the number of sentinels to add to the model's pieces.

    The number is 100, or 0 if the model contains sentinels or the embedding has no rows for them.
    """
    sentinel_is_piece = any(piece.removeprefix("▁") == "<extra_id_0>" for piece, _ in model.pieces)
    return 0 if sentinel_is_piece or len(model.pieces) + 100 > vocab_size else 100


def write_tokenizer(
    directory: AnyPath, tokenizer: Tokenizer, *, add_eos: bool = True, is_umt5: bool = False
) -> str:
    """Writes the tokenizer's files; returns the name of the `transformers` class that loads them.

    If `add_eos` is False, the class is PreTrainedTokenizerFast, because T5Tokenizer and
    ByT5Tokenizer always append EOS. For umT5 models with a byte vocabulary, the class is also
    PreTrainedTokenizerFast, because AutoTokenizer accepts no other class.
    """
    if tokenizer.model is None:
        name = "ByT5Tokenizer" if add_eos and not is_umt5 else GENERIC
    else:
        # T5Tokenizer ignores the byte fallback that tokenizer.json requests.
        name = "T5Tokenizer" if add_eos and not tokenizer.model.byte_fallback else GENERIC
        (directory / "spiece.model").write_bytes(tokenizer.model.path.read_bytes())
    sentinels = [f"<extra_id_{i}>" for i in range(tokenizer.extra_ids)]
    added = dict(zip(_SPECIAL.values(), itertools.count(), strict=False))
    added |= {text: tokenizer.num_ids - 1 - i for i, text in enumerate(sentinels)}
    config = {
        "tokenizer_class": name,
        **_SPECIAL,
        "extra_ids": tokenizer.extra_ids,
        "additional_special_tokens": sentinels,
        "model_max_length": _MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    tokens = {i: {"content": text, **TOKEN_FLAGS, "special": True} for text, i in added.items()}
    if name == "ByT5Tokenizer":
        config["added_tokens_decoder"] = {str(i): token for i, token in tokens.items()}
    else:
        content = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, **tokens[i]} for i in sorted(tokens)],
            **(_sentence_pieces(tokenizer.model, sentinels) if tokenizer.model else _bytes(added)),
            "post_processor": template({"</s>": 1}, None, "</s>" if add_eos else None),
        }
        write_json(directory / "tokenizer.json", content, indent=None)
    write_json(directory / "tokenizer_config.json", config)
    return name


def tokenizer_adds_eos(directory: AnyPath) -> bool:
    """Returns whether the tokenizer in a directory appends EOS, or True if there is no tokenizer.

    In transformers 5, T5Tokenizer and ByT5Tokenizer always append EOS. Other classes append EOS if
    the post-processor in tokenizer.json does.
    """
    path = find_tokenizer(directory)
    return path is None or TokenizerFile.open(path).adds_eos


def tokenizer_records_eos(directory: AnyPath) -> bool:
    """Returns whether `tokenizer_adds_eos` also tells whether inputs ended with EOS in training.

    It does for tokenizers that mtf has written, and for classes that do not always append EOS. But
    T5Tokenizer also appends EOS for models that were trained without EOS, such as T0.
    """
    length = _read(directory / "tokenizer_config.json").get("model_max_length")
    return length == _MAX_LENGTH or follows_file(directory)


def bytes_of(directory: AnyPath) -> Tokenizer | None:
    """Returns the byte vocabulary in a Hugging Face directory, or None for other vocabularies.

    The result has sentinels only if sentinel 0 has the last id, as in mtf's exports. In published
    ByT5 models, sentinel 0 has the id 258, and all sentinels share their ids with bytes.
    """
    config = _read(directory / "tokenizer_config.json")
    if config.get("tokenizer_class") == "ByT5Tokenizer":
        added = {
            token.get("content"): int(number)
            for number, token in config.get("added_tokens_decoder", {}).items()
        }
    else:
        model = _read(directory / "tokenizer.json").get("model", {})
        added = model.get("vocab", {})
        if not isinstance(added, dict) or added.get("<0x00>") != len(_SPECIAL) or model["merges"]:
            return None
    own = Tokenizer(extra_ids=int(config.get("extra_ids", 0)))
    return own if added.get("<extra_id_0>") == own.num_ids - 1 else Tokenizer()


def _read(path: AnyPath) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _bytes(added: dict[str, int]) -> dict[str, Any]:
    """Returns the parts of tokenizer.json that make a tokenizer encode all text as bytes."""
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


def _sentence_pieces(model: SentencePieceModel, sentinels: list[str]) -> dict[str, Any]:
    """Returns the parts of tokenizer.json that are specific to a SentencePiece model."""
    # The special tokens have T5's names in tokenizer.json, whatever their names in the model are.
    pieces = [[text, 0.0] for text in _SPECIAL.values()]
    pieces += [list(piece) for piece in model.pieces[len(_SPECIAL) :]]
    pieces += [[text, 0.0] for text in reversed(sentinels)]
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
