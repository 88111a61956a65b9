"""What the settings of data accept and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data.settings import HubStreamConfig, TextCorporaConfig, TextFilesConfig
from mtf.data.tasks.objectives import BertStyle, IidDenoising, Objective, PrefixLM, SpanCorruption
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary
from tests.data.helpers import BYTES, LENGTHS_32


def lengths(inputs: int, targets: int) -> dict[str, Any]:
    return {"task_feature_lengths": {"inputs": inputs, "targets": targets}}


NOISE = [
    ({"noise_density": 0.0}, "noise_density must be greater than 0 and less than 1, not 0.0"),
    ({"noise_density": 1.5}, "noise_density must be greater than 0 and less than 1, not 1.5"),
    ({"mean_noise_span_length": 0.5}, "mean_noise_span_length must be at least 1, not 0.5"),
    ({"merge_documents": 0}, "merge_documents must be at least 1, not 0"),
    ({"max_document_tokens": 0}, "max_document_tokens must be at least 1, not 0"),
]
FILES = [
    ({"task_feature_lengths": {"inputs": 32}}, "lengths: targets is missing"),
    ({"task_feature_lengths": {"inputs": 1, "target": 8}}, "'target'; .* Did you mean targets"),
    (lengths(0, 8), r"\['inputs'\] must be at least 1, not 0"),
    (lengths(8, 8), r"\['inputs'\]: 8 tokens are too few for span corruption"),
    (
        lengths(512, 113),
        r"\['targets'\] must be at least 114, not 113: .* 568 tokens .* yields 114 target t",
    ),
    (
        {"vocabulary": ByteVocabulary(extra_ids=1)},
        "1 sentinels are too few; segments of 34 tokens need 2 sentinels",
    ),
    (
        {"vocabulary": SentencePieceVocabulary("not read here", extra_ids=20), **lengths(512, 114)},
        "20 sentinels are too few; segments of 568 tokens need 28 sentinels",
    ),
    (lengths(8192, 4096), "259 ids are too few; segments of 9101 tokens need 455 sentinels"),
    ({"seed": -1}, r"seed must be in \[0, 2\*\*63\), not -1"),
    ({"num_held_out": -1}, "num_held_out must be at least 0, not -1"),
    ({"files": ()}, "data.files is empty; expected at least one file"),
    (
        {"objective": PrefixLM(), **lengths(512, 1)},
        r"\['targets'\] must be at least 2, not 1: .* needs room for one token and",
    ),
    (
        {"objective": PrefixLM(), **lengths(2, 8)},
        r"\['inputs'\] must be at least 3, not 2: prefix language modeling needs",
    ),
    (
        {"objective": BertStyle(), **lengths(512, 511)},
        r"\['targets'\] must be at least 512, not 511: .* all 511 tokens",
    ),
    (
        {"objective": IidDenoising(), **lengths(512, 114)},
        r"\['targets'\] must be at least 2\d\d, not 114: .* yields up to 2",
    ),
]
CORPORA = [
    ({"files": {}}, "data.files is empty; expected the files of at least one corpus"),
    ({"files": {"ro/en": "a.txt"}}, "'ro/en' is not a valid name"),
    ({"files": {"ro": ()}}, "data.files is empty"),
    ({"rates": {"ro": 1.0, "ne": 1.0}}, "'ne'; expected ro, en.*Did you mean en"),
    ({"rates": {"ro": 1.0}}, "data.rates: en is missing"),
    ({"rates": {"ro": 1.0, "en": 0.0}}, r"rates\['en'\] must be a positive number, not 0.0"),
    ({"rates": {"ro": 1.0, "en": float("nan")}}, "must be a positive number, not nan"),
    ({"sampling_exponent": 1.5}, r"sampling_exponent must be in \[0, 1\], not 1.5"),
    ({"num_held_out": -1}, "num_held_out must be at least 0, not -1"),
    (lengths(32, 7), "must be at least 8, not 7"),
]
STREAMS = [
    ({"dataset": ""}, "data.dataset is empty"),
    ({"subsets": {}}, "data.subsets is empty"),
    ({"subsets": {"ro": -1.0}}, r"subsets\['ro'\] must be a positive number, not -1.0"),
    ({"subsets": {"a/b": 1.0}}, "'a/b' is not a valid name"),
    ({"data_files": ()}, "data_files is empty"),
    ({"num_streams": 0}, "num_streams must be at least 1, not 0"),
    ({"window_documents": 0}, "window_documents must be at least 1, not 0"),
    (lengths(32, 7), "must be at least 8, not 7"),
]
DATA: dict[str, Any] = {"vocabulary": BYTES, "task_feature_lengths": LENGTHS_32}
VALUES: dict[Any, dict[str, Any]] = {
    SpanCorruption: {},
    BertStyle: {},
    TextFilesConfig: DATA,
    TextCorporaConfig: DATA | {"files": {"ro": "ro.txt", "en": "en.txt"}},
    HubStreamConfig: DATA | {"dataset": "me/mine"},
}


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        *((SpanCorruption, *case) for case in NOISE),
        (BertStyle, {"random_token_rate": 1.5}, r"must be in \[0, 1\], not 1.5"),
        *((TextFilesConfig, *case) for case in FILES),
        *((TextCorporaConfig, *case) for case in CORPORA),
        *((HubStreamConfig, *case) for case in STREAMS),
    ],
)
def test_impossible_settings_are_refused(cls: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cls(**VALUES[cls] | values)


def test_exactly_enough_targets_and_sentinels_are_accepted() -> None:
    TextFilesConfig(vocabulary=ByteVocabulary(extra_ids=28), **lengths(512, 114))
    TextFilesConfig(vocabulary=BYTES, **lengths(512, 114))
    TextFilesConfig(vocabulary=BYTES, files="pairs.tsv", **lengths(512, 4))


def test_objectives_need_as_many_sentinels_as_they_use() -> None:
    def data(objective: Objective, extra_ids: int) -> TextFilesConfig:
        vocabulary = ByteVocabulary(extra_ids=extra_ids)
        return TextFilesConfig(vocabulary=vocabulary, objective=objective, **lengths(512, 512))

    data(BertStyle(), 1)
    data(PrefixLM(), 1)
    data(IidDenoising(), 100)
    with pytest.raises(UserError, match="28 sentinels"):
        data(SpanCorruption(), 27)
    with pytest.raises(UserError, match="segments of 511 tokens need"):
        data(IidDenoising(), 60)
