"""T5's objectives and the texts of ids, beside SeqIO's."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data.tasks.mixtures import mixture
from mtf.data.text.vocabularies import (
    ByteVocabulary,
    SentencePieceVocabulary,
    TokenizerVocabulary,
    Vocabulary,
)
from tests.data.helpers import restore, write_parquet
from tests.seqio.helpers import BYTES

seqio = pytest.importorskip("seqio")

TEXTS = [f"{i} {'text ' * (80 * (i % 4))}" for i in range(40)]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mirror")
    # An empty document is none.
    write_parquet(root / "c4/en/train.parquet", [{"text": text} for text in [*TEXTS, ""]])
    return root


def examples(mirror: Path, name: str, seed: int | None = 0, **settings: Any) -> list[Any]:
    from mtf.data.seqio_tasks import tasks as seqio_tasks

    task = seqio_tasks.build(mixture(name), BYTES, mirror).provider
    lengths = {"inputs": 512, "targets": 114}
    settings = {"shuffle": False, "sequence_length": lengths, **settings}
    dataset = task.get_dataset(split="train", seed=seed, **settings)
    return list(dataset.as_numpy_iterator())


def test_span_corruption_to_512_takes_568_tokens_and_gives_114_targets(mirror: Path) -> None:
    made = examples(mirror, "c4_v220_span_corruption")
    *whole, last = [(len(example["inputs"]), len(example["targets"])) for example in made]
    assert set(whole) == {(512, 114)}
    assert last[0] <= 512 and last[1] <= 114
    pieces = [restore(example["inputs"], example["targets"], 259) for example in made]
    assert {len(piece) for piece in pieces[:-1]} == {568}
    assert list(itertools.chain(*pieces)) == list(itertools.chain(*map(BYTES.encode, TEXTS)))


def test_prefix_lm_splits_and_joins_to_the_text(mirror: Path) -> None:
    lengths = {"inputs": 512, "targets": 512}
    made = examples(mirror, "c4_v220_prefix_lm", sequence_length=lengths)
    joined: list[int] = []
    for example in made:
        assert example["inputs"][-1] == example["targets"][-1] == 1
        joined += [*example["inputs"][:-1], *example["targets"][:-1]]
    assert joined == list(itertools.chain(*map(BYTES.encode, TEXTS)))
    assert len({len(example["inputs"]) for example in made}) > 2


def test_targets_that_are_too_short_are_refused(mirror: Path) -> None:
    with pytest.raises(ValueError, match="114"):
        examples(mirror, "c4_v220_span_corruption", sequence_length={"inputs": 512, "targets": 113})


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


def test_seqio_cannot_use_a_tokenizer_json() -> None:
    from mtf.data.seqio_tasks import tasks as seqio_tasks

    with pytest.raises(UserError, match=r"SeqIO cannot tokenize with a/tokenizer.json.*mtf\.cache"):
        seqio_tasks.seqio_vocabulary(TokenizerVocabulary("a/tokenizer.json"))
