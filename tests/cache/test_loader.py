"""Training from a token cache: what comes, in which order, and where it goes on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data import loaders
from mtf.data.cache.reader import check_files
from mtf.data.packing import HostBatch
from mtf.data.seqio.cache_format import SeqioFormat
from mtf.data.settings import TaskMixtureConfig
from mtf.data.tasks.objectives import PrefixLM, SpanCorruption
from mtf.data.text.vocabularies import ByteVocabulary
from tests.cache.helpers import (
    FRUIT,
    NAME,
    NUM_FRUIT,
    NUM_TEXTS,
    SUMS,
    data,
    fruit_rows,
    mixture,
    sum_rows,
    text_rows,
    text_task,
    write_cache,
)
from tests.data.helpers import restore
from tests.small import python
from tests.test_loaders import examples_of_row, take

BYTES = ByteVocabulary()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks of pairs."""
    return write_cache(tmp_path_factory.mktemp("cached"), num_shards=3)


@pytest.fixture(scope="module")
def fruit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One task."""
    return write_cache(tmp_path_factory.mktemp("fruit"), mixture((FRUIT, None)))


def batches(config: TaskMixtureConfig, number: int, **shard: Any) -> list[HostBatch]:
    return take(loaders.make_train_iterator(config, **({"batch_size": 4} | shard)), number)


def texts(batch: HostBatch) -> list[tuple[str, str]]:
    """Returns the examples of a batch, in the order of its rows."""
    examples = [
        e for row in range(len(batch["decoder_target_tokens"])) for e in examples_of_row(batch, row)
    ]
    assert all(targets[-1] == BYTES.eos_id for _, targets in examples)
    return [(BYTES.decode(inputs), BYTES.decode(targets)) for inputs, targets in examples]


def rendered(task: Any, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(e["inputs"], e["targets"]) for e in task.examples(rows, "train")]


def test_an_epoch_has_every_example_once_and_the_next_another_order(fruit: Path) -> None:
    found = [text for b in batches(data(fruit, pack=False), 46, batch_size=10) for text in texts(b)]
    first, second = found[:NUM_FRUIT], found[NUM_FRUIT:]
    assert sorted(first) == sorted(second) == sorted(rendered(FRUIT, fruit_rows()))
    assert first != second and first != rendered(FRUIT, fruit_rows())
    ordered = batches(data(fruit, pack=False, shuffle=False), 23, batch_size=10)
    assert [text for b in ordered for text in texts(b)] == rendered(FRUIT, fruit_rows())


def test_packed_rows_hold_the_same_examples(cache: Path) -> None:
    known = set(rendered(FRUIT, fruit_rows())) | set(rendered(SUMS, sum_rows()))
    found = [text for batch in batches(data(cache), 30) for text in texts(batch)]
    assert len(found) > 150 and set(found) <= known


def test_tasks_come_at_their_rates(tmp_path: Path) -> None:
    path = write_cache(tmp_path, mixture((FRUIT, 30), (SUMS, 10)))
    for batch_size in (2, 8):
        found = [
            text
            for batch in batches(data(path, pack=False), 2048 // batch_size, batch_size=batch_size)
            for text in texts(batch)
        ]
        sums = sum("thing" not in inputs for inputs, _ in found)
        assert abs(sums - 512) <= 4  # a quarter
        # Not in turn: each row of the batch has both.
        by_row = Counter(
            (place % batch_size, "thing" in inputs) for place, (inputs, _) in enumerate(found)
        )
        assert len(by_row) == 2 * batch_size


def test_long_features_are_truncated_and_targets_keep_their_end(fruit: Path) -> None:
    config = data(fruit, pack=False, task_feature_lengths={"inputs": 8, "targets": 3})
    (batch,) = batches(config, 1)
    assert all(BYTES.decode(row) == "Is thing" for row in batch["encoder_input_tokens"])
    assert {tuple(row) for row in batch["decoder_target_tokens"].tolist()} <= {
        (*[byte + 3 for byte in answer], 1) for answer in (b"no", b"ye")
    }


def test_documents_become_examples_by_their_objective(tmp_path: Path) -> None:
    path = write_cache(tmp_path, mixture((text_task(SpanCorruption(merge_documents=4)), None)))
    lengths = {"inputs": 32, "targets": 8}
    config = data(path, pack=False, task_feature_lengths=lengths)
    documents = [row["text"] for row in text_rows()]
    pieces = set()
    for batch in batches(config, 40):
        for row in range(4):
            ids = restore(*examples_of_row(batch, row)[0], BYTES.vocab_size)
            assert len(ids) <= 34
            pieces |= {text for text in documents if text in BYTES.decode(ids)}
    assert len(pieces) > NUM_TEXTS / 2


def test_documents_and_pairs_mix(tmp_path: Path) -> None:
    task = text_task(PrefixLM(merge_documents=2), inputs_add_eos=False)
    path = write_cache(tmp_path, mixture((FRUIT, 10), (task, 10)))
    found = [text for batch in batches(data(path, pack=False), 100) for text in texts(batch)]
    known = set(rendered(FRUIT, fruit_rows()))
    assert 190 <= sum(text in known for text in found) <= 210


def test_evaluation_has_every_validation_example_once(cache: Path) -> None:
    (make,) = loaders.make_evaluations(data(cache), batch_size=6).values()
    found = [text for batch in make() for text in texts(batch)]
    assert sorted(found) == sorted(rendered(FRUIT, fruit_rows()[:20]))
    assert list(loaders.make_evaluations(data(cache), batch_size=6)) == [NAME]
    assert loaders.make_evaluations(data(cache, eval_split=None), batch_size=6) == {}
    assert loaders.make_evaluations(data(cache, eval_split="test"), batch_size=6) == {}
    shown = loaders.sample_examples(data(cache), 3)
    assert len(shown) == 3 and all(len(example.targets) for example in shown)


def test_provenance_names_what_was_trained_on(cache: Path) -> None:
    found = json.loads(json.dumps(loaders.provenance(data(cache))))
    assert found["templates"] == mixture().fingerprint and found["vocabulary"] == "byte+0"
    assert found["tasks"]["math_sums"]["rate"] == found["tasks"]["math_sums"]["num_examples"] == 60


def test_training_needs_neither_tensorflow_nor_templates(cache: Path) -> None:
    code = f"""
import sys
from mtf.data import loaders
from mtf.data.settings import TaskMixtureConfig
from mtf.data.text.vocabularies import ByteVocabulary
data = TaskMixtureConfig(mixture_or_task_name={NAME!r}, vocabulary=ByteVocabulary(),
    task_feature_lengths={{"inputs": 64, "targets": 32}}, cache_dir={str(cache)!r})
next(loaders.make_train_iterator(data, batch_size=2))
loaders.provenance(data)
print(*sorted({{name.split(".")[0] for name in sys.modules}}))
"""
    loaded = set(python("-c", code).stdout.split())
    assert "array_record" in loaded
    assert not loaded & {"tensorflow", "seqio", "jinja2", "yaml", "pyarrow", "datasets"}


def refusal(config: TaskMixtureConfig) -> str:
    with pytest.raises(UserError) as refused:
        batches(config, 30)
    return str(refused.value)


def test_what_is_not_there_is_named(cache: Path, tmp_path: Path) -> None:
    message = refusal(data(tmp_path / "none"))
    assert f"{tmp_path}/none does not exist" in message
    assert f"python -m mtf.cache '{NAME}' --output {tmp_path}/none" in message
    assert f"mtf.cache '{NAME}'" in refusal(dataclasses.replace(data(cache), cache_dir=None))
    message = refusal(data(cache, mixture_or_task_name="small_mixtrue"))
    assert "no mixture 'small_mixtrue'" in message and f"Did you mean {NAME}" in message
    message = refusal(data(cache, vocabulary=ByteVocabulary(100)))
    assert "was made with byte+0" in message and "not with byte+100" in message
    message = refusal(data(cache, split="test"))
    assert f"no examples of {NAME} in split test" in message


def test_starting_reads_no_examples(tmp_path: Path) -> None:
    """So it takes as long with ten million of them: the files may hold zeros until the first."""
    config = data(write_cache(tmp_path))
    place, told = loaders.make_train_iterator(config, batch_size=4), loaders.provenance(config)
    for path in (tmp_path / "cache").glob("*/*.array_record"):
        path.write_bytes(bytes(path.stat().st_size))
    assert "2 of 2 tasks" in loaders.check(config, batch_size=4)
    assert loaders.provenance(config) == told
    resumed = loaders.make_train_iterator(config, batch_size=4)
    resumed.set_state(place.get_state())


def test_damage_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    cache_dir = write_cache(tmp_path)
    path = cache_dir / "math_sums" / "train-00000-of-00001.array_record"
    content = path.read_bytes()
    remedy = (
        f"Delete {path.parent}, then write this task again with python -m mtf.cache '{NAME}' --out"
    )
    path.write_bytes(content[:-1])
    message = refusal(data(cache_dir))
    assert str(path) in message and f"has {len(content) - 1} bytes" in message and remedy in message
    path.unlink()
    assert f"{path} is missing" in refusal(data(cache_dir))
    damaged = bytearray(content)
    for position in range(65_536 - 300, 65_536):  # in ArrayRecord's own index
        if position < len(damaged):
            damaged[position] ^= 0xFF
    for position in range(100, 400):
        damaged[position] ^= 0xFF
    path.write_bytes(damaged)
    message = refusal(data(cache_dir))
    assert str(path) in message and "cannot be read" in message and remedy in message


def test_a_task_that_is_only_in_part_there_is_named(tmp_path: Path) -> None:
    cache_dir = write_cache(tmp_path)
    (cache_dir / "math_sums").rename(cache_dir / "math_sums.incomplete")
    message = refusal(data(cache_dir))
    assert (
        "task math_sums in the cache" in message
        and "is incomplete" in message
        and "python -m mtf.cache" in message
    )


def test_a_cache_of_some_tasks_is_refused_unless_allowed(tmp_path: Path) -> None:
    cache_dir = write_cache(tmp_path, only=("food_*",))
    message = refusal(data(cache_dir))
    assert message == (
        f"data: 1 of the 2 tasks of {NAME} are missing:\n"
        "  math_sums: not chosen by --only\n"
        f"To add them, run python -m mtf.cache '{NAME}' --output {cache_dir} --vocabulary byt5 "
        "--extra-ids 0, which keeps finished tasks. To use only 1 of 2 tasks, set "
        "data.allow_missing_tasks=True."
    )
    allowed = data(cache_dir, allow_missing_tasks=True)
    assert all("thing" in inputs for batch in batches(allowed, 5) for inputs, _ in texts(batch))
    found = loaders.provenance(allowed)
    assert found["num_tasks"] == 2
    assert found["missing_tasks"] == {"math_sums": "not chosen by --only"}
    # A complete cache has none, and a directory that somebody deleted is missed.
    write_cache(tmp_path, only=("math_*",))
    assert loaders.provenance(data(cache_dir))["missing_tasks"] == {}
    shutil.rmtree(cache_dir / "food_fruit")
    assert f"food_fruit: its directory {cache_dir / 'food_fruit'} is missing" in refusal(
        data(cache_dir)
    )


def test_one_directory_is_expected(tmp_path: Path) -> None:
    for dirs, message in ((("a", "b"), "expected one token cache"), ((), "empty"), ("", "empty")):
        with pytest.raises(UserError, match=f"data.cache_dir .*{message}"):
            refused = dataclasses.replace(data(tmp_path), cache_dir=dirs)
            loaders.make_train_iterator(refused, batch_size=4)


def test_a_task_without_the_split_is_missing_in_training_only(tmp_path: Path) -> None:
    cache_dir = write_cache(tmp_path)  # Only food_fruit has validation records.
    message = refusal(data(cache_dir, split="validation", eval_split="train"))
    assert f"math_sums: its split validation has no examples in the cache {cache_dir}" in message
    [evaluation] = loaders.make_evaluations(data(cache_dir), batch_size=4).values()
    assert len(list(evaluation())) > 0


def test_a_cache_in_seqios_form_is_for_the_other_loader(tmp_path: Path) -> None:
    cache_dir = write_cache(tmp_path, format=SeqioFormat())
    assert "set data.loader='seqio' and data.use_cached=True" in refusal(data(cache_dir))
    assert list(check_files(cache_dir, ["food_fruit"])) == [("food_fruit", [])]
