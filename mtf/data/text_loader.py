"""Batches of text files: of one corpus (`TextFilesConfig`) or of several (`TextCorporaConfig`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
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
    at_most_some,
)
from mtf.data.settings import TextCorporaConfig, TextFilesConfig

EVALUATION = "held_out"


def make_train_iterator(
    data: TextFilesConfig | TextCorporaConfig, shard: Shard, prefetch: int = 2
) -> BatchIterator:
    """See `mtf.loaders.make_train_iterator`."""
    if isinstance(data, TextFilesConfig):
        dataset = TextDataset(data)
        datasets, mixing, content = [dataset], None, dataset.fingerprint
    else:
        corpora = open_corpora(data)
        datasets, content = list(corpora.values()), _fingerprint(data, corpora)
        mixing = Mixing(list(corpus_rates(data, corpora).values()))
    streams = {}
    for row in shard.rows:
        sources = (dataset.training() for dataset in datasets)
        readers = [SourceReader(source, row, shard.batch_size) for source in sources]
        streams[row] = SourceRowStream(readers, data, row, shard.batch_size, mixing)
    return StreamsIterator(streams, data, content, prefetch)


def evaluation_parts(data: TextFilesConfig | TextCorporaConfig) -> EvaluationParts:
    """See `mtf.loaders`: the held-out examples.

    Those of a corpus are an evaluation of their own, `held_out_NAME`, if there are not too many.
    """

    def part(corpus: TextFilesConfig) -> Callable[[], Iterator[Example]]:
        return lambda: all_examples(TextDataset(corpus).evaluation())

    if isinstance(data, TextFilesConfig):
        return {EVALUATION: [part(data)]}
    parts = {f"{EVALUATION}_{name}": [part(corpus)] for name, corpus in _corpora(data).items()}
    return at_most_some(parts, EVALUATION)


def provenance(data: TextFilesConfig | TextCorporaConfig) -> dict[str, Any]:
    """See `mtf.loaders.provenance`."""
    if isinstance(data, TextFilesConfig):
        return {"data": TextDataset(data).fingerprint}
    corpora = open_corpora(data)
    rates = corpus_rates(data, corpora)
    return {
        "data": _fingerprint(data, corpora),
        "corpora": {
            name: {
                "documents": corpus.num_training,
                "held_out": len(corpus.held_out),
                "rate": rates[name] / sum(rates.values()),
            }
            for name, corpus in corpora.items()
        },
    }


def open_corpora(data: TextCorporaConfig) -> dict[str, TextDataset]:
    """Opens every corpus, each with an order of its own; raises UserError where one cannot be."""
    return {name: TextDataset(corpus) for name, corpus in _corpora(data).items()}


def corpus_rates(data: TextCorporaConfig, corpora: dict[str, TextDataset]) -> dict[str, float]:
    """Returns how often each corpus is sampled, relative to the others.

    Those of `data.rates`, else the number of documents to the power of `data.sampling_exponent`.
    """
    return {
        name: corpus.num_training**data.sampling_exponent
        if data.rates is None
        else data.rates[name]
        for name, corpus in corpora.items()
    }


def _corpora(data: TextCorporaConfig) -> dict[str, TextFilesConfig]:
    return {
        name: data.corpus(name, derived_seed(data.seed, Purpose.CORPUS, zlib.crc32(name.encode())))
        for name in data.files
    }


def _fingerprint(data: TextCorporaConfig, corpora: dict[str, TextDataset]) -> str:
    rates = corpus_rates(data, corpora)
    contents = {
        f"[{name}]": f"{corpus.num_training} of {corpus.content} at {rates[name]:.6g}"
        for name, corpus in corpora.items()
    }
    return fingerprint(data, **contents)
