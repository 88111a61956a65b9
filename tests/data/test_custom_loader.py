"""Data of the user's own: iterators over examples or batches that store their position."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import grain
import numpy as np
import pytest

from mtf.base.errors import RunError, UserError
from mtf.data import ByteVocabulary, CustomDataConfig, loaders
from tests.data.helpers import stored
from tests.test_loaders import assert_same, take

_LENGTHS = {"inputs": 16, "targets": 8}


@dataclasses.dataclass
class Counting:
    """Yields numbers in words' lengths: the example n has n % 5 + 1 inputs and one target."""

    position: int
    stride: int

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> dict[str, Any]:
        n = self.position
        self.position += self.stride
        return {"inputs": np.full(n % 5 + 1, 10 + n % 100), "targets": [20 + n % 100, 1]}

    def get_state(self) -> Any:
        return {"position": self.position}

    def set_state(self, state: Any) -> None:
        self.position = state["position"]


def counting(shard_index: int, shard_count: int) -> Counting:
    return Counting(shard_index, shard_count)


def of_grain(shard_index: int, shard_count: int) -> grain.MapDataset:
    numbers = grain.MapDataset.range(50)[shard_index::shard_count].shuffle(seed=3).repeat()
    return numbers.map(lambda n: {"inputs": [5] * (n % 7 + 1), "targets": [int(n) + 10, 1]})


def of_grain_loader(shard_index: int, shard_count: int) -> grain.DataLoader:
    class Source:
        def __len__(self) -> int:
            return 50

        def __repr__(self) -> str:
            return "fifty numbers"

        def __getitem__(self, n: int) -> dict[str, Any]:
            return {"inputs": [5] * (n % 7 + 1), "targets": [n + 10, 1]}

    sampler = grain.samplers.IndexSampler(
        50,
        shard_options=grain.sharding.ShardOptions(shard_index, shard_count),
        shuffle=True,
        seed=1,
    )
    return grain.DataLoader(data_source=Source(), sampler=sampler, worker_count=0)


def config(train: Callable[..., Any], **settings: Any) -> CustomDataConfig:
    return CustomDataConfig(
        train=train, vocabulary=ByteVocabulary(), task_feature_lengths=_LENGTHS, **settings
    )


@pytest.mark.parametrize("train", [counting, of_grain, of_grain_loader])
@pytest.mark.parametrize("pack", [True, False])
def test_resumes_with_the_same_batches(train: Callable[..., Any], pack: bool) -> None:
    batches = loaders.make_train_iterator(config(train, pack=pack), batch_size=4)
    take(batches, 3)
    state = stored(batches)
    expected = take(batches, 3)
    resumed = loaders.make_train_iterator(config(train, pack=pack), batch_size=4)
    resumed.set_state(state)
    assert resumed.get_state() == state
    assert_same(take(resumed, 3), expected)


def test_examples_in_order_without_packing() -> None:
    batches = loaders.make_train_iterator(config(counting, pack=False), batch_size=2)
    first, second = take(batches, 2)
    np.testing.assert_array_equal(first["encoder_input_tokens"][1], [11, 11] + [0] * 14)
    np.testing.assert_array_equal(second["decoder_target_tokens"][0], [22, 1] + [0] * 6)
    assert second["decoder_loss_weights"].sum() == 4


def test_each_process_reads_its_share() -> None:
    data = config(counting, pack=False)
    parts = [
        next(loaders.make_train_iterator(data, batch_size=4, shard_id=i, num_shards=2))
        for i in range(2)
    ]
    firsts = [part["decoder_target_tokens"][:, 0].tolist() for part in parts]
    assert firsts == [[20, 22], [21, 23]]

    whole = loaders.make_train_iterator(data, batch_size=4)
    state = loaders.make_train_iterator(data, batch_size=4, num_shards=2).get_state()
    with pytest.raises(UserError, match="in 2 parts, but now there are 1"):
        whole.set_state(state)


def test_text_is_tokenized_with_eos() -> None:
    data = config(counting, evaluation=lambda: [{"inputs": "ab", "targets": "c"}])
    (batch,) = loaders.make_evaluations(data, batch_size=2)["held_out"]()
    # ByT5's ids of bytes are the bytes + 3.
    np.testing.assert_array_equal(batch["encoder_input_tokens"][0, :4], [100, 101, 1, 0])
    np.testing.assert_array_equal(batch["decoder_target_tokens"][0, :3], [102, 1, 0])


def failing(item: Any) -> Callable[..., Any]:
    def train(shard_index: int, shard_count: int) -> Any:
        return grain.MapDataset.source([item]).repeat()

    return train


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"text": "a"}, r"data.train, item 1 is a dict with the keys text; expected \{'inputs'"),
        ({"inputs": [1.5], "targets": [1]}, r"inputs has type float64 and shape \(1,\)"),
        ({"inputs": [1], "targets": [999]}, "targets has ids from 999 to 999; the vocabulary has"),
    ],
)
def test_wrong_items(item: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        next(loaders.make_train_iterator(config(failing(item), pack=False), batch_size=4))


def test_an_end_is_reported() -> None:
    def finite(shard_index: int, shard_count: int) -> Any:
        return grain.MapDataset.source([{"inputs": "a", "targets": "b"}] * 5)

    batches = loaders.make_train_iterator(config(finite, pack=False), batch_size=4, prefetch=0)
    next(batches)
    with pytest.raises(RunError, match=r"ended after 5 items; expected an endless iterator"):
        next(batches)


def test_a_state_that_cannot_be_stored() -> None:
    class Odd(Counting):
        def get_state(self) -> Any:
            return object()

    with pytest.raises(UserError, match="get_state returned a object that cannot be stored"):
        loaders.make_train_iterator(
            config(lambda shard_index, shard_count: Odd(0, 1)), batch_size=4
        )
