"""The live loader: batches as the other loaders make them, shared by processes, resumed exactly."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.data import loaders
from mtf.data.examples import Example
from mtf.data.packing import HostBatch, to_batch
from mtf.data.text.vocabularies import ByteVocabulary
from tests import small
from tests.seqio.helpers import BYTES, DOCUMENTS, NUM_SENTENCES, mixture, write_mirror
from tests.test_loaders import assert_same, take

pytest.importorskip("seqio")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mirror(tmp_path_factory.mktemp("mirror"))


def numbers(batches: list[HostBatch]) -> list[int]:
    """Returns the number of each example: what its targets start with."""
    found = []
    for batch in batches:
        segments = batch.get("decoder_segment_ids", batch["decoder_loss_weights"])
        for row, ids in zip(batch["decoder_target_tokens"], segments, strict=True):
            for segment in range(1, ids.max() + 1):
                text = BYTES.decode(row[ids == segment])
                found.append(int(text.partition("!")[0]))
    return found


@pytest.mark.slow
def test_tensorflow_prints_nothing() -> None:
    lines = "import sys; from mtf.data.seqio_tasks import import_seqio; import_seqio()"
    lines += "\nimport tensorflow as tf; tf.config.list_physical_devices('GPU')"
    done = small.python("-c", f"{lines}\nprint('after', file=sys.stderr)")
    assert small.without_waiting(done.stdout + done.stderr) == "after\n"


def test_an_unpacked_batch_is_that_of_our_own_tokens(mirror: Path) -> None:
    data = mixture(mirror)
    found = take(loaders.make_train_iterator(data, batch_size=6), 1)
    rows = []
    for i in range(6):
        inputs = f"Translate from en to ro: {i}: {'a' * (i % 7)}"
        targets = f"{i}! {'b' * (i % 5)}"
        example = Example(
            np.array(BYTES.encode(inputs), np.int32),
            np.array([*BYTES.encode(targets), 1], np.int32),
        )
        rows.append([example])
    assert_same(found, [to_batch(rows, data.task_feature_lengths, 6, pack=False)])


def test_packed_batches_have_the_same_features_as_ours(mirror: Path) -> None:
    data = mixture(mirror, pack=True, task_feature_lengths={"inputs": 80, "targets": 32})
    [batch] = take(loaders.make_train_iterator(data, batch_size=2), 1)
    rows = []
    for inputs, targets, of_inputs, of_targets in zip(
        batch["encoder_input_tokens"],
        batch["decoder_target_tokens"],
        batch["encoder_segment_ids"],
        batch["decoder_segment_ids"],
        strict=True,
    ):
        assert of_inputs.max() == of_targets.max() > 1
        segments = range(1, of_inputs.max() + 1)
        rows.append([Example(inputs[of_inputs == s], targets[of_targets == s]) for s in segments])
    assert_same([batch], [to_batch(rows, data.task_feature_lengths, 2, pack=True)])


@pytest.mark.parametrize(("shuffle", "num_epochs"), [(False, 1), (True, 10)])
def test_two_processes_read_all_examples_and_none_twice(
    mirror: Path, shuffle: bool, num_epochs: int
) -> None:
    data = mixture(mirror, shuffle=shuffle)
    num_batches = num_epochs * NUM_SENTENCES["train"] // 6
    parts = []
    for shard in range(2):
        batches = loaders.make_train_iterator(data, batch_size=6, shard_id=shard, num_shards=2)
        parts.append(numbers(take(batches, num_batches)))
    # SeqIO's shuffle buffer reaches over the ends of epochs: there, some come again before others.
    found = parts if not shuffle else [sorted(set(part)) for part in parts]
    assert sorted(found[0] + found[1]) == list(range(NUM_SENTENCES["train"]))


@pytest.mark.parametrize(
    "settings",
    [
        {"pack": False},
        {"pack": True},
        {"name": DOCUMENTS, "task_feature_lengths": {"inputs": 64, "targets": 16}},
    ],
)
def test_resuming_in_the_middle_of_an_epoch_repeats_and_skips_nothing(
    mirror: Path, settings: dict[str, Any]
) -> None:
    data = mixture(mirror, shuffle=True, seed=3, **settings)
    batches = loaders.make_train_iterator(data, batch_size=4)
    take(batches, 5)
    state = batches.get_state()
    expected = take(batches, 15)
    resumed = loaders.make_train_iterator(data, batch_size=4)
    resumed.set_state(state)
    assert resumed.get_state() == state
    assert_same(take(resumed, 15), expected)
    # Back again, on an iterator that has gone on.
    batches.set_state(state)
    assert_same(take(batches, 1), expected[:1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary": ByteVocabulary(100)}, r"byte\+100"),
        ({"name": "opus100_ro_en_mt"}, "opus100_ro_en_mt"),
        ({"seed": 1}, "seed 1"),
        ({"batch_size": 8}, "batch_size"),
    ],
)
def test_a_place_in_other_data_is_refused(
    mirror: Path, change: dict[str, Any], message: str
) -> None:
    batches = loaders.make_train_iterator(mixture(mirror), batch_size=4)
    next(batches)
    batch_size = change.pop("batch_size", 4)
    other = loaders.make_train_iterator(mixture(mirror, **change), batch_size=batch_size)
    with pytest.raises(UserError, match=message):
        other.set_state(batches.get_state())


def test_evaluation_has_every_example_once_and_fills_up_with_padding(mirror: Path) -> None:
    data = mixture(mirror)
    [(name, batches)] = loaders.make_evaluations(data, batch_size=4).items()
    assert name == data.mixture_or_task_name
    whole = list(batches())
    assert [len(batch["decoder_target_tokens"]) for batch in whole] == [4, 4]
    assert not whole[1]["decoder_loss_weights"][3].any()
    rows = [row for batch in whole for row in batch["decoder_target_tokens"] if row.any()]
    assert [int(BYTES.decode(row).partition("!")[0]) for row in rows] == list(range(7))
    # Two processes share each batch.
    for shard in range(2):
        [part] = loaders.make_evaluations(data, batch_size=4, shard_id=shard, num_shards=2).values()
        rows = slice(2 * shard, 2 * shard + 2)
        mine = [{name: value[rows] for name, value in batch.items()} for batch in whole]
        assert_same(list(part()), mine)


def test_training_without_the_split_names_the_task(mirror: Path) -> None:
    with pytest.raises(UserError, match=r"opus100_en_ro_mt: opus100/en-ro, split test, is missing"):
        loaders.make_train_iterator(mixture(mirror, split="test"), batch_size=4)


def test_a_missing_cache_is_named_with_the_command_that_makes_it(
    mirror: Path, tmp_path: Path
) -> None:
    data = mixture(mirror, use_cached=True, cache_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"python -m mtf\.cache 'opus100_en_ro_mt' --format seqio"):
        loaders.make_train_iterator(data, batch_size=4)


def test_a_mixture_without_some_datasets_is_refused_unless_allowed(
    prompts: Path, datasets_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = mixture(datasets_dir, "t0++_train")
    with pytest.raises(UserError) as refused:
        loaders.make_train_iterator(data, batch_size=4)
    # The mirror has social_i_qa, piqa, trec, rotten_tomatoes and xsum.
    assert "of the 464 tasks of t0++_train are missing:\n" in str(refused.value)
    assert " datasets (glue/mrpc, " in str(refused.value)
    allowed = dataclasses.replace(data, allow_missing_tasks=True)
    found = loaders.provenance(allowed)
    assert found["num_tasks"] == 464 and "glue_mrpc_equivalent" in found["missing_tasks"]
    assert not any(name.startswith(("trec", "piqa")) for name in found["missing_tasks"])
    [batch] = take(loaders.make_train_iterator(allowed, batch_size=4), 1)
    assert batch["decoder_target_tokens"].shape == (4, 32)
