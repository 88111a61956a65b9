"""Loads text files: one corpus (`TextFilesConfig`) or several (`TextCorporaConfig`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mtf.data.examples import Example, TextDataset, fingerprint
from mtf.data.mixing import Mixing
from mtf.data.randomness import Purpose, derived_seed
from mtf.data.row_streams import (
    BatchIterator,
    EvaluationParts,
    Shard,
    SourceReader,
    SourceRowStream,
    StreamsIterator,
    all_examples,
    joined_if_many,
)
from mtf.data.settings import TextCorporaConfig, TextFilesConfig
from mtf.data.sources.lines import TEXT_SUFFIXES
from mtf.data.sources.text_files import find_files

EVALUATION = "held_out"


def make_train_iterator(
    data: TextFilesConfig | TextCorporaConfig, shard: Shard, prefetch: int = 2
) -> BatchIterator:
    """See `mtf.data.loaders.make_train_iterator`."""
    if isinstance(data, TextFilesConfig):
        dataset = TextDataset(data)
        datasets, mixing, content = [dataset], None, dataset.fingerprint
    else:
        corpora, rates, content = _open_corpora(data)
        datasets, mixing = list(corpora.values()), Mixing(list(rates.values()))
    streams = {}
    for row in shard.rows:
        readers = [SourceReader(each.training(), row, shard.batch_size) for each in datasets]
        streams[row] = SourceRowStream(readers, data, row, shard.batch_size, mixing)
    return StreamsIterator(streams, data, content, prefetch)


def evaluation_parts(data: TextFilesConfig | TextCorporaConfig) -> EvaluationParts:
    """Returns one evaluation `held_out` or, for a few named corpora, a `held_out_NAME` for each."""

    def part(corpus: TextFilesConfig) -> Callable[[], Iterator[Example]]:
        return lambda: all_examples(TextDataset(corpus).evaluation())

    if isinstance(data, TextFilesConfig):
        return {EVALUATION: part(data)}
    parts = {f"{EVALUATION}_{name}": part(corpus) for name, corpus in _corpora(data).items()}
    return joined_if_many(parts, EVALUATION)


def check(data: TextFilesConfig | TextCorporaConfig, batch_size: int) -> str:
    """See `mtf.data.loaders.check`; looks for the files, but does not read them."""
    files: list[Path] = []
    for corpus in [data] if isinstance(data, TextFilesConfig) else _corpora(data).values():
        found = find_files(corpus.patterns)
        if all(file.name.endswith(TEXT_SUFFIXES) for file in found):
            corpus.check_objective(corpus.vocabulary.vocab_size)
        files += found
    if not files:
        return "the text that ships with Python"
    num_bytes = sum(file.stat().st_size for file in files)
    number = f"{len(files)} files" if len(files) > 1 else "1 file"
    return f"{number}, {num_bytes / 1e6:,.1f} MB; the lines are checked when the run starts"


def provenance(data: TextFilesConfig | TextCorporaConfig) -> dict[str, Any]:
    """See `mtf.data.loaders.provenance`."""
    if isinstance(data, TextFilesConfig):
        return {"data": TextDataset(data).fingerprint}
    corpora, rates, content = _open_corpora(data)
    return {
        "data": content,
        "corpora": {
            name: {
                "documents": corpus.num_training,
                "held_out": len(corpus.held_out),
                "rate": rates[name] / sum(rates.values()),
            }
            for name, corpus in corpora.items()
        },
    }


def _corpora(data: TextCorporaConfig) -> dict[str, TextFilesConfig]:
    return {
        name: data.corpus(name, derived_seed(data.seed, Purpose.CORPUS, zlib.crc32(name.encode())))
        for name in data.files
    }


def _open_corpora(data: TextCorporaConfig) -> tuple[dict[str, TextDataset], dict[str, float], str]:
    """Opens all corpora; returns them, their relative rates, and a fingerprint of both."""
    corpora = {name: TextDataset(corpus) for name, corpus in _corpora(data).items()}
    sizes = {name: corpus.num_training for name, corpus in corpora.items()}
    rates = data.rates or {name: n**data.sampling_exponent for name, n in sizes.items()}
    contents = {
        f"[{name}]": f"{sizes[name]} of {corpus.content} at {rates[name]:.6g}"
        for name, corpus in corpora.items()
    }
    return corpora, {name: rates[name] for name in corpora}, fingerprint(data, **contents)
