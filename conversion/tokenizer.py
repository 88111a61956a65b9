"""Tokenizer files for Hugging Face: the same ids as SentencePiece, or as ByT5's bytes.

For SentencePiece, `tokenizer.json` holds all that is needed, so that neither `sentencepiece` nor
`protobuf` has to be installed where the model is used; `spiece.model` lies beside it for older
versions and other tools.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from conversion.errors import ConversionError
from conversion.sentencepiece_model import SentencePieceModel

_NUM_BYTES = 256
_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


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
    """Checks that every id has a row in the embedding.

    Raises:
      ConversionError: some have none.
    """
    if tokenizer.num_ids > vocab_size:
        raise ConversionError(
            f"The vocabulary has {tokenizer.num_ids} ids ({tokenizer.extra_ids} of them "
            f"sentinels), but the checkpoint's embedding only {vocab_size} rows."
        )


def write_tokenizer(directory: Path, tokenizer: Tokenizer) -> str:
    """Writes the tokenizer's files; returns the name of the class that will read them."""
    if isinstance(tokenizer, Bytes):
        config = _config("ByT5Tokenizer", tokenizer.extra_ids)
        config["added_tokens_decoder"] = {
            str(i): _added_token(text) for text, i in _added(tokenizer).items()
        }
        _dump(directory / "tokenizer_config.json", config)
        return "ByT5Tokenizer"
    # T5Tokenizer rebuilds itself without byte fallback, whatever tokenizer.json says.
    byte_fallback = tokenizer.model.byte_fallback
    name = "PreTrainedTokenizerFast" if byte_fallback else "T5Tokenizer"
    _dump(directory / "tokenizer_config.json", _config(name, tokenizer.extra_ids))
    _dump(directory / "tokenizer.json", _tokenizer_json(tokenizer))
    shutil.copyfile(tokenizer.model.path, directory / "spiece.model")
    return name


def _sentinels(extra_ids: int) -> list[str]:
    return [f"<extra_id_{i}>" for i in range(extra_ids)]


def _added(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens that are matched as they stand, with their ids."""
    last = tokenizer.num_ids - 1
    special = {text: i for i, text in enumerate(_SPECIAL.values())}
    sentinels = {text: last - i for i, text in enumerate(_sentinels(tokenizer.extra_ids))}
    return special | sentinels


def _added_token(text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": text, **flags, "special": True}


def _config(class_name: str, extra_ids: int) -> dict[str, Any]:
    return {
        "tokenizer_class": class_name,
        **_SPECIAL,
        "extra_ids": extra_ids,
        "additional_special_tokens": _sentinels(extra_ids),
        "model_max_length": 10**9,  # relative positions set no limit
        "clean_up_tokenization_spaces": False,
    }


def _tokenizer_json(tokenizer: SentencePieces) -> dict[str, Any]:
    """What SentencePiece does, said in the terms of Hugging Face's `tokenizers`."""
    model, added = tokenizer.model, _added(tokenizer)
    # The special tokens go by T5's names, whatever the model calls them.
    pieces = [[text, 0.0] for text in _SPECIAL.values()]
    pieces += [list(piece) for piece in model.pieces[len(_SPECIAL) :]]
    pieces += [[text, 0.0] for text in reversed(_sentinels(tokenizer.extra_ids))]
    metaspace = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    }
    charsmap = base64.b64encode(model.charsmap).decode("ascii")
    eos = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    byte_decoder = [{"type": "ByteFallback"}, metaspace, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, **_added_token(text)}
            for text, i in sorted(added.items(), key=lambda item: item[1])
        ],
        "normalizer": (
            {"type": "Precompiled", "precompiled_charsmap": charsmap} if charsmap else None
        ),
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, eos],
            "pair": [first, eos, second, eos],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": (
            {"type": "Sequence", "decoders": byte_decoder} if model.byte_fallback else metaspace
        ),
        "model": {
            "type": "Unigram",
            "unk_id": 2,
            "vocab": pieces,
            "byte_fallback": model.byte_fallback,
        },
    }


def _dump(path: Path, content: dict[str, Any]) -> None:
    indent = None if path.name == "tokenizer.json" else 2
    text = json.dumps(content, ensure_ascii=False, indent=indent)
    path.write_text(text + "\n", encoding="utf-8")
