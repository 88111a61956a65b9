"""Writes tiny models with random weights whose files are laid out like those on the hub.

The fields of the config files are those of the published models, except for the sizes. The
tokenizers have the same parts; the package `tokenizers` trains them on Python's own source code.
"""

from __future__ import annotations

import functools
import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

SENTINELS = [f"<extra_id_{i}>" for i in reversed(range(100))]
TEXTS = [
    "def f(x):\n\treturn  x + 1  # add one",
    "    if self.value is None:\n        raise ValueError(f'{name!r}')\n",
    "   leading, trailing and  double spaces  ",
    "",
    "你好，世界。今天天气很好。",
    "Größe naïve façade șțăî",
    "👋🏽 emoji 😀",
    "rare: ᚠᛇᚻ مرحبا 日本語",
    "a <extra_id_0> b <extra_id_1> c",
    "quoted </s> and <pad> and <unk>",
    "\u2028\u00a0\u200b\ttabs\r\n",
]
_T5 = {
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "use_cache": True,
    "d_model": 32,
    "d_ff": 48,
    "d_kv": 8,
    "num_heads": 4,
    "num_layers": 2,
    "num_decoder_layers": 2,
}
_CODE = _T5 | {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "feed_forward_proj": "relu",
    "n_positions": 512,
}
_UNTIED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# Name on the hub → the fields of its config.json.
CONFIGS: dict[str, dict[str, Any]] = {
    "Salesforce/codet5-base": _CODE,
    "Salesforce/codet5p-770m": _CODE,
    "google/ul2": _T5 | _UNTIED | {"feed_forward_proj": "gated-silu"},
    "EleutherAI/pile-t5-base": _T5
    | _UNTIED
    | {"model_type": "umt5", "eos_token_id": 2, "scalable_attention": True}
    | {"tokenizer_class": "LlamaTokenizerFast", "relative_attention_max_distance": 128},
    "google/madlad400-3b-mt": _T5 | _UNTIED | {"eos_token_id": 2, "pad_token_id": 1},
}
# Each embedding has unused rows, as the published ones do.
NUM_ROWS = 1152


def write_tokenizer(folder: Path, name: str) -> Any:
    """Writes the files of a model's tokenizer; returns the tokenizer of `tokenizers`."""
    makers = {"codet5": _code, "ul2": _ul2, "pile": _pile, "madlad": _madlad}
    make = next(make for word, make in makers.items() if word in name)
    tokenizer, settings = make()
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "tokenizer_config.json", {"model_max_length": 512, **settings})
    if name == "Salesforce/codet5-base":  # has no tokenizer.json
        tokenizer.model.save(str(folder))
        write(folder / "added_tokens.json", {x: tokenizer.token_to_id(x) for x in SENTINELS})
    else:
        tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@functools.cache
def _corpus() -> list[str]:
    code = inspect.getsource(textwrap).splitlines()
    return [*code, "你好，世界。今天天气很好。", "Größe naïve façade", "👋🏽 emoji 😀"] * 2


def _code() -> tuple[Any, dict[str, Any]]:
    """RoBERTa's byte-level BPE, with CodeT5's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 1), trim_offsets=True, add_prefix_space=False
    )
    tokenizer.add_special_tokens(SENTINELS)
    named = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>"}
    settings = {f"{name}_token": text for name, text in (named | {"pad": "<pad>"}).items()}
    mask = {"content": "<mask>", "lstrip": True, "normalized": True, "__type": "AddedToken"}
    return tokenizer, {
        **settings,
        "mask_token": mask,
        "additional_special_tokens": SENTINELS,
        "add_prefix_space": False,
        "errors": "replace",
        "tokenizer_class": "RobertaTokenizer",
        "trim_offsets": True,
    }


def _ul2() -> tuple[Any, dict[str, Any]]:
    tokenizer = _unigram(["<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens(SENTINELS)
    return tokenizer, {
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "extra_ids": 100,
        "additional_special_tokens": SENTINELS,
        "tokenizer_class": "T5Tokenizer",
    }


def _madlad() -> tuple[Any, dict[str, Any]]:
    return _unigram(["<unk>", "<s>", "</s>"]), {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<s>",
        "unk_token": "<unk>",
        "extra_ids": 0,
        "additional_special_tokens": [],
        "tokenizer_class": "T5Tokenizer",
    }


def _unigram(special: list[str]) -> Any:
    """Returns what `transformers` converts T5's SentencePiece models to."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.Unigram())
    spaces = {"replacement": "▁", "prepend_scheme": "always"}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**spaces)]
    )
    tokenizer.decoder = decoders.Metaspace(**spaces)
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", special.index("</s>"))]
    )
    return tokenizer


def _pile() -> tuple[Any, dict[str, Any]]:
    """LLaMA's BPE with byte fallback, with 100 sentinels."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    content = json.loads(tokenizer.to_str())
    # In LLaMA's tokenizer, merges may cross spaces, and pieces for bytes are not special.
    content["pre_tokenizer"] = None
    content["added_tokens"] = content["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    tokenizer.add_special_tokens(SENTINELS)
    return tokenizer, {
        "add_bos_token": False,
        "add_eos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": None,
        "additional_special_tokens": SENTINELS,
        "clean_up_tokenization_spaces": False,
        "legacy": True,
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizerFast",
    }
