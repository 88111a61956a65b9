"""Reads and writes tokenizers of the package `tokenizers`, without importing it.

Most models store them in `tokenizer.json`. CodeT5 has the older `vocab.json` and `merges.txt`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from conversion.json_file import read_json, write_json
from conversion.tensor import ConversionError
from mtf.storage import AnyPath

_FILES = ("tokenizer.json", "vocab.json")
# If both define a special token, the second takes precedence.
_SETTINGS = ("special_tokens_map.json", "tokenizer_config.json")
# All files that this module reads.
FILES = (*_FILES, *_SETTINGS, "added_tokens.json", "merges.txt")
# The name, in transformers 4 and 5, of the class that reads everything from tokenizer.json.
GENERIC = "PreTrainedTokenizerFast"
# Classes that always append EOS, whatever tokenizer.json says; T5Tokenizer is the default.
_ALWAYS_EOS = ("T5Tokenizer", "MT5Tokenizer", "ByT5Tokenizer")
TOKEN_FLAGS = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)


@dataclasses.dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer in `tokenizer.json`, or in `vocab.json` and `merges.txt`.

    Attributes:
      path: path of `tokenizer.json` or `vocab.json`. The files beside it name the special tokens.
      bos_token: the token with which all texts begin; None if they begin with no special token.
      eos_token: the token with which texts end.
      adds_eos: whether the tokenizer appends `eos_token`.
    """

    path: AnyPath
    bos_token: str | None = None
    eos_token: str = "</s>"
    adds_eos: bool = True

    extra_ids: ClassVar[int] = 0

    @classmethod
    def open(cls, path: AnyPath) -> TokenizerFile:
        """Finds out which special tokens the tokenizer adds to a text."""
        settings = read_settings(path.parent)
        named = _text(settings.get("eos_token", cls.eos_token))
        follows = follows_file(path.parent)
        bos, eos = _added(read_content(path)) if follows else (None, named)
        return cls(path, bos, eos or named, eos is not None)

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """Dict mapping each token to its id."""
        content = read_content(self.path)
        vocab = content["model"]["vocab"]
        if isinstance(vocab, list):  # the (piece, score) pairs of a unigram model
            vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
        return {**vocab, **{token["content"]: token["id"] for token in content["added_tokens"]}}

    @property
    def num_ids(self) -> int:
        """The greatest id plus 1."""
        return 1 + max(self.ids.values())

    @property
    def special_ids(self) -> dict[str, int]:
        """The special ids, named as in config.json; decoders of the T5 family start with 0."""
        padding = _text(read_settings(self.path.parent).get("pad_token"))
        found = {
            "decoder_start_token_id": 0,
            "eos_token_id": self._id(self.eos_token),
            "pad_token_id": self.ids.get(padding, 0),
        }
        if self.bos_token is not None:
            found["bos_token_id"] = self._id(self.bos_token)
        return found

    def write(self, directory: AnyPath, *, add_eos: bool) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`.

        The class of the written tokenizer reads everything from `tokenizer.json`. T5Tokenizer of
        transformers 5 does not: it replaces, for example, the id of unknown pieces by 2.
        """
        content = read_content(self.path)
        added = self.bos_token, self.eos_token if add_eos else None
        if _added(content) != added:
            special = {token: self._id(token) for token in added if token is not None}
            content["post_processor"] = template(special, *added)
        write_json(directory / "tokenizer.json", content, indent=None)
        settings = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        settings |= read_settings(self.path.parent) | {"tokenizer_class": GENERIC}
        write_json(directory / "tokenizer_config.json", settings)

    def _id(self, token: str) -> int:
        if token not in self.ids:
            raise ConversionError(f"{self.path} has no token {token!r}.")
        return self.ids[token]


def find_tokenizer(directory: AnyPath) -> AnyPath | None:
    """Returns the path of `tokenizer.json` or `vocab.json` in a directory, or None."""
    return next((directory / name for name in _FILES if (directory / name).is_file()), None)


def follows_file(directory: AnyPath) -> bool:
    """Returns whether the tokenizer's files decide if `transformers` appends EOS to a text."""
    name = read_settings(directory).get("tokenizer_class")
    always = name is None or name.removesuffix("Fast") in _ALWAYS_EOS
    return not always and find_tokenizer(directory) is not None


def read_settings(directory: AnyPath) -> dict[str, Any]:
    """Returns the fields of `tokenizer_config.json` and `special_tokens_map.json` that are set."""
    files = (directory / name for name in _SETTINGS)
    contents = (read_json(file) for file in files if file.is_file())
    return {name: x for content in contents for name, x in content.items() if x is not None}


def read_content(path: AnyPath) -> dict[str, Any]:
    """Returns the content of `tokenizer.json`, or what it would be for a `vocab.json`.

    Raises ConversionError if the file contains no tokenizer.
    """
    content = _byte_level(path) if path.name == "vocab.json" else read_json(path)
    model = content.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise ConversionError(f"{path} is not a tokenizer: it has no field model.vocab.")
    return content


def template(special: dict[str, int], bos: str | None, eos: str | None) -> dict[str, Any]:
    """Returns a post-processor that adds BOS, EOS or both; `special` maps tokens to their ids."""
    before, after = (
        [] if token is None else [{"SpecialToken": {"id": token, "type_id": 0}}]
        for token in (bos, eos)
    )
    first, second = ([*before, {"Sequence": {"id": name, "type_id": 0}}, *after] for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *second],
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]}
            for token, number in special.items()
        },
    }


def _added(content: dict[str, Any]) -> tuple[str | None, str | None]:
    """Returns the tokens that a post-processor puts before and after a text; None for no token."""
    processor = content.get("post_processor") or {}
    for each in processor.get("processors", [processor]):
        if "single" in each:
            tokens = [piece.get("SpecialToken", {}).get("id") for piece in each["single"]]
            return tokens[0], tokens[-1]
        if "cls" in each:
            return each["cls"][0], each["sep"][0]
    return None, None


def _byte_level(path: AnyPath) -> dict[str, Any]:
    """Returns RoBERTa's tokenizer with the pieces in a `vocab.json` and the merges beside it."""
    directory = path.parent
    settings = {"cls_token": "<s>", "sep_token": "</s>", **read_settings(directory)}
    vocab, added = read_json(path), directory / "added_tokens.json"
    ids = {**vocab, **(read_json(added) if added.is_file() else {})}
    tokens = [x for name, x in settings.items() if name.endswith("_token") and _text(x)]
    special = {
        _text(token): token for token in tokens + settings.get("additional_special_tokens", [])
    }
    for token in special:
        ids.setdefault(token, len(ids))
    flags = {text: token for text, token in special.items() if isinstance(token, dict)}
    merges = (directory / "merges.txt").read_text(encoding="utf-8").split("\n")
    space = {"add_prefix_space": settings.get("add_prefix_space", False), "trim_offsets": True}
    byte_level = {"type": "ByteLevel", **space, "use_regex": True}
    cls, sep = (_text(settings.get(f"{name}_token")) for name in ("cls", "sep"))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": text,
                **{name: flags.get(text, {}).get(name, False) for name in TOKEN_FLAGS},
                "special": text in special,
            }
            for text, number in sorted(ids.items(), key=lambda item: item[1])
            if text in special or text not in vocab
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": [sep, ids.get(sep)],
            "cls": [cls, ids.get(cls)],
            **space,
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [line for line in merges if line and not line.startswith("#version")],
        },
    }


def _text(token: Any) -> str:
    """Returns the text of a special token, which may be stored with flags, or "" if it is unset."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""
