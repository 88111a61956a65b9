"""What TextFiles accepts and what it refuses, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from mtf.data.config import SpanCorruption, TextFiles
from mtf.data.vocabularies import ByteVocabulary, SentencePieceVocabulary
from mtf.errors import UserError
from tests.data.helpers import BYTES, LENGTHS_32


def test_defaults_are_t5s() -> None:
    config = SpanCorruption()
    assert (config.noise_density, config.mean_noise_span_length) == (0.15, 3.0)
    assert (config.merge_documents, config.max_document_tokens) == (128, 65536)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"noise_density": 0.0}, "noise_density: 0.0 is not between 0 and 1"),
        ({"noise_density": 1.5}, "noise_density: 1.5 is not between"),
        ({"mean_noise_span_length": 0.5}, "mean_noise_span_length: 0.5 is less than one token"),
        ({"merge_documents": 0}, "merge_documents: 0 is less than 1"),
        ({"max_document_tokens": 0}, "max_document_tokens: 0 is less than 1"),
    ],
)
def test_impossible_noise_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SpanCorruption(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task_feature_lengths": {"inputs": 32}}, "the length of 'targets' is missing"),
        (
            {"task_feature_lengths": {"inputs": 32, "target": 8}},
            "no feature 'target'.*Did you mean targets",
        ),
        ({"task_feature_lengths": {"inputs": 0, "targets": 8}}, r"\['inputs'\]: 0 is less than 1"),
        (
            {"task_feature_lengths": {"inputs": 8, "targets": 8}},
            "inputs length 8 is too small for span corruption",
        ),
        (
            {"task_feature_lengths": {"inputs": 512, "targets": 113}},
            r"\['targets'\]: 113 is too small.* 568 tokens .* gives 114 targets",
        ),
        (
            {"vocabulary": ByteVocabulary(extra_ids=1)},
            "1 are too few; segments of 34 tokens need 2 sentinels",
        ),
        (
            {
                "vocabulary": SentencePieceVocabulary("not read here", extra_ids=20),
                "task_feature_lengths": {"inputs": 512, "targets": 114},
            },
            "20 are too few; segments of 568 tokens need 28 sentinels",
        ),
        (
            {"task_feature_lengths": {"inputs": 8192, "targets": 4096}},
            "259 ids are too few; segments of 9101 tokens need 455 sentinels",
        ),
        ({"seed": -1}, "seed: -1"),
        ({"num_held_out": -1}, "num_held_out: -1"),
        ({"files": ()}, "no file is named"),
    ],
)
def test_impossible_data_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TextFiles(**{"vocabulary": BYTES, "task_feature_lengths": LENGTHS_32, **values})


def test_pairs_may_have_lengths_that_span_corruption_could_not_use() -> None:
    TextFiles(
        vocabulary=BYTES, task_feature_lengths={"inputs": 512, "targets": 4}, files="pairs.tsv"
    )


def test_exactly_enough_targets_and_sentinels_are_accepted() -> None:
    TextFiles(
        vocabulary=ByteVocabulary(extra_ids=28),
        task_feature_lengths={"inputs": 512, "targets": 114},
    )
    TextFiles(vocabulary=BYTES, task_feature_lengths={"inputs": 512, "targets": 114})
