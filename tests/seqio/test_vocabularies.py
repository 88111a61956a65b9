"""Text of ids, beside SeqIO's vocabularies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

pytest.importorskip("seqio")


def assert_same_text(vocabulary: Vocabulary, ids: list[int]) -> None:
    """Decodes random sequences of some ids, of padding and of end of sequence."""
    from mtf.data.seqio_tasks import tasks as seqio_tasks

    theirs: Any = seqio_tasks.seqio_vocabulary(vocabulary)
    rng = random.Random(0)
    for _ in range(500):
        drawn = rng.choices([*rng.choices(ids, k=20), 0, 1], k=rng.randrange(30))
        assert vocabulary.decode(drawn) == theirs.decode(drawn), drawn


@pytest.mark.parametrize("extra_ids", [0, 20])
def test_bytes(extra_ids: int) -> None:
    # The last eleven bytes and the extra ids are shown as sentinels here, and dropped there.
    assert_same_text(ByteVocabulary(extra_ids), [*range(248), 300, 5000])


@pytest.mark.parametrize("extra_ids", [0, 100])
def test_pieces(extra_ids: int, t5_model: Path) -> None:
    vocabulary = SentencePieceVocabulary(str(t5_model), extra_ids)
    assert_same_text(vocabulary, [*range(vocabulary.vocab_size + 20)])
