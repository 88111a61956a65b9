"""Small checkpoints, vocabularies and data at the addresses and in the layouts of the originals."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

from mtf.storage.remote import RemotePath
from tests import made_up
from tests.conversion import writers
from tests.storage.conftest import put

T5X = "t5-data/pretrained_models/t5x"
# Checkpoint below T5X's directory → its step and its number of embedding rows. `infer` is told no
# vocabulary, so its checkpoint has the number of rows by which T5's is recognized.
RELEASED = {
    "t5_1_1_small": (1_000_000, 512),
    "t5_1_1_base": (1_000_000, 32128),
    "t5_1_1_lm100k_xl": (1_100_000, 512),
    "t5_1_1_lm100k_xxl": (1_100_000, 512),
    "mt5_small": (1_000_000, 512),
    "mt5_base": (1_000_000, 512),
    "mt5_large": (1_000_000, 512),
    "mt5_xl": (1_000_000, 512),
    "mt5_xxl": (1_000_000, 512),
}
# The sizes of all networks here, by the names of a recipe's settings.
NETWORK = {
    "emb_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "mlp_dim": 32,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}
VOCABULARIES = (
    "t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model",
    "t5-data/vocabs/mc4.250000.100extra/sentencepiece.model",
    "myv4-bucket/sentencepiece/ro.model",
)
# The languages of mC4 by the names of their files in allenai/c4.
_MC4 = """
af am ar az be bg bg-Latn bn ca ceb co cs cy da de el el-Latn en eo es et eu fa fi fil fr fy ga gd
gl gu ha haw hi hi-Latn hmn ht hu hy id ig is it iw ja ja-Latn jv ka kk km kn ko ku ky la lb lo lt
lv mg mi mk ml mn mr ms mt my ne nl no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm sn so sq sr st
su sv sw ta te tg th tr uk und ur uz vi xh yi yo zh zh-Latn zu
"""
_WORDS = "the a small model reads text of many words and learns what follows them in sentences"


def sentences(num: int) -> Iterator[str]:
    """Yields texts of some twenty words, the same at every call."""
    rng = random.Random(0)
    for _ in range(num):
        yield " ".join(rng.choices(_WORDS.split(), k=20))


def upload(folder: Path) -> None:
    """Puts checkpoints and vocabularies where the originals have them; `folder` is empty."""
    for rows in {rows for _, rows in RELEASED.values()}:
        parameters = writers.random_parameters(**NETWORK, vocab_size=rows)
        for name, (step, its_rows) in RELEASED.items():
            if its_rows == rows:
                written = writers.write_t5x(
                    folder / name, parameters, step, kvstore="gcs", adafactor=True
                )
                put(written, RemotePath(f"gs://{T5X}/{name}/{written.name}"))
    model = folder / "sentencepiece.model"
    content = made_up.sentencepiece_model(sentences(500), num_pieces=400, num_sentinels=100)
    model.write_bytes(content)
    for key in VOCABULARIES:
        put(model, RemotePath(f"gs://{key}"))


def write_hub(folder: Path) -> dict[str, Path]:
    """Writes the repositories that are streamed; returns their folders, by name.

    They are C4 and mC4 in allenai/c4, whose README.md lists the subsets' files, and the Romanian
    corpus, whose subset and columns are those that the original's task reads.
    """
    c4, rlm = folder / "c4", folder / "rlm"
    lines = ["---", "configs:", *_subset("en", "en/c4-train", "en/c4-validation")]
    _documents(c4 / "en/c4-train.00000-of-00001.json.gz", 200)
    _documents(c4 / "en/c4-validation.00000-of-00001.json.gz", 20)
    for language in _MC4.split():
        files = f"multilingual/c4-{language}"
        name = "en-multi" if language == "en" else language
        lines += _subset(name, files, f"{files}-validation")
        _documents(c4 / f"{files}.tfrecord-00000-of-00001.json.gz", 20)
        _documents(c4 / f"{files}-validation.tfrecord-00000-of-00001.json.gz", 4)
    (c4 / "README.md").write_text("\n".join([*lines, "---", ""]))
    _documents(rlm / "train.json.gz", 200)
    _documents(rlm / "validation.json.gz", 20)
    return {"allenai/c4": c4, "dumitrescustefan/rlm": rlm}


def _subset(name: str, train: str, validation: str) -> list[str]:
    """Returns the lines of README.md about a subset."""
    lines = [f"- config_name: '{name}'", "  data_files:"]
    for split, files in (("train", train), ("validation", validation)):
        lines += [f"  - split: {split}", f"    path: {files}.*.json.gz"]
    return lines


def _documents(file: Path, num: int) -> None:
    """Writes documents with the columns of C4."""
    rest = {"timestamp": "2019-04-25T12:57:54Z", "url": "https://example.com"}
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt") as opened:
        opened.writelines(json.dumps({"text": t, **rest}) + "\n" for t in sentences(num))


def write_files(folder: Path) -> None:
    """Writes the local files that recipes read by default, or that a page names."""
    texts = list(sentences(100))
    (folder / "train.tsv").write_text("".join(f"{t}\t{t[:20]}\n" for t in texts))
    (folder / "inputs.txt").write_text("".join(f"{t}\n" for t in texts[:4]))
    hub = folder / "copies" / "hf" / "datasets"
    pairs = [json.dumps({"inputs": t, "targets": t[:20]}) + "\n" for t in texts]
    for file in (
        *(
            f"bigscience/{name}/{x}/merged_{x}.jsonl"
            for name in ("xP3", "xP3mt")
            for x in ("en", "ro")
        ),
        "Muennighoff/P3/p31t0_train/p31t0/part.jsonl",
    ):
        (hub / file).parent.mkdir(parents=True)
        (hub / file).write_text("".join(pairs))
