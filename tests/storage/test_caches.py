"""Token caches in stores have the content and the batches of local ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.base.writing import locked
from mtf.cli.cache import main
from mtf.data import loaders
from mtf.data.cache import writer
from mtf.data.cache.reader import TokenCache
from mtf.data.seqio import loader
from mtf.data.settings import TaskMixtureConfig
from mtf.data.text.vocabularies import ByteVocabulary
from mtf.storage.errors import StorageError
from mtf.storage.remote import RemotePath
from tests import small
from tests.storage.conftest import BUCKET, Servers, put

TASKS = """\
from mtf.data import tasks
def pair(row):
    return {'inputs': row['question'], 'targets': row['answer']}
for name in ('sums', 'products'):
    tasks.register(name, tasks.FileSource({'train': f'{name}.jsonl'}), pair)
tasks.register_mixture('both', ['sums', 'products'])
"""


@pytest.fixture
def options(tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of the command that caches two small tasks in three files each."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_tasks.py").write_text(TASKS)
    for name, sign in (("sums", "+"), ("products", "*")):
        rows = [{"question": f"{i} {sign} {i + 1}", "answer": str(i)} for i in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("".join(map("{}\n".format, map(json.dumps, rows))))
    fixed = ["--module", "own_tasks", "--vocabulary", "byt5"]
    return ["both", *fixed, "--num-shards", "3", "--num-workers", "1", "--output"]


def data(cache_dir: Any, **settings: Any) -> TaskMixtureConfig:
    return TaskMixtureConfig(
        mixture_or_task_name="both",
        vocabulary=ByteVocabulary(),
        task_feature_lengths={"inputs": 64, "targets": 32},
        cache_dir=str(cache_dir),
        **settings,
    )


def batches(cache_dir: Any) -> list[Any]:
    return list(itertools.islice(loaders.make_train_iterator(data(cache_dir), batch_size=4), 10))


def contents(directory: Path | RemotePath) -> dict[str, bytes]:
    if isinstance(directory, RemotePath):
        return {name: (directory / name).read_bytes() for name in directory.infos()}
    return small.contents(directory)


def assert_same(remote: RemotePath, local: Path) -> None:
    assert contents(remote) == contents(local)
    for there, here in zip(batches(remote), batches(local), strict=True):
        assert there.keys() == here.keys()
        for name in here:
            np.testing.assert_array_equal(there[name], here[name])


def test_a_cache_in_a_store_is_the_local_one(
    store: RemotePath, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options, "local"]) == 0
    assert main([*options, str(store)]) == 0
    assert f"{store}: 2 tasks written" in capsys.readouterr().out
    assert_same(store, tmp_path / "local")
    # No file of examples is left where it was written.
    assert not list((tmp_path / "copies/writing").rglob("*.array_record*"))
    assert main([*options, str(store)]) == 0
    assert "all 2 tasks are already complete" in capsys.readouterr().out
    assert main([*options, str(store), "--check"]) == 0
    assert "2 tasks read, 0 damaged" in capsys.readouterr().out


def test_an_interrupted_cache_is_continued_on_another_machine(
    store: RemotePath,
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*options, "local"]) == 0
    upload, uploaded = RemotePath.upload, []

    def failing(path: RemotePath, file: Path) -> None:
        uploaded.append(path.name)
        if sum(name.endswith("array_record") for name in uploaded) == 5:
            raise StorageError(path, "the store cannot be reached", "network")
        upload(path, file)

    monkeypatch.setattr(RemotePath, "upload", failing)
    assert main([*options, str(store)]) == 1
    assert "run the same command again to continue" in capsys.readouterr().err
    monkeypatch.setattr(RemotePath, "upload", upload)
    # The first task is complete, the second not.
    cache = TokenCache(store)
    assert [cache.has(f"{name}/info.json") for name in ("sums", "products")] == [True, False]
    monkeypatch.setenv("MTF_CACHE", str(tmp_path / "another machine"))
    written: list[str] = []
    write = writer.write_shard
    monkeypatch.setattr(
        "mtf.data.cache.build.write_shard",
        lambda work: (written.append(work.path.name), write(work))[1],
    )
    assert main([*options, str(store)]) == 0
    assert written == [f"train-0000{shard}-of-00003.array_record" for shard in (1, 2)]
    assert_same(store, tmp_path / "local")


def test_a_second_command_is_refused_with_the_address(
    store: RemotePath, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = tmp_path / "copies" / "writing" / store.protocol / store.path
    with locked(local, "--output"):
        assert main([*options, str(store)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --output: {store} is in use by process ")
    assert error.endswith(f"If the process no longer exists, delete {local / '.lock'}.\n")


def test_a_store_that_is_no_cache_is_refused(
    store: RemotePath, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "letters.txt").write_text("mine")
    assert main([*options, str(store)]) == 2
    assert f"--output {store} is neither empty nor a cache" in capsys.readouterr().err
    assert [*store.infos()] == ["letters.txt"]
    assert main([*options, f"{store.protocol}://absent/cache"]) == 2
    assert "there is no bucket 'absent'" in capsys.readouterr().err


def test_seqio_caches_in_a_store_are_converted(
    store: RemotePath, options: list[str], tmp_path: Path
) -> None:
    assert main([*options, "seqio", "--format", "seqio"]) == 0
    assert main([*options, "local", "--from-seqio", "seqio"]) == 0
    put(tmp_path / "seqio", store / "seqio")
    assert main([*options, "converted", "--from-seqio", f"{store}/seqio"]) == 0
    files = contents(tmp_path / "local")
    found = contents(tmp_path / "converted")
    assert found.keys() == files.keys()
    examples = [name for name in files if name.endswith("array_record")]
    assert len(examples) == 6 and all(found[name] == files[name] for name in examples)


def test_seqio_caches_are_written_to_a_store(
    store: RemotePath, options: list[str], tmp_path: Path
) -> None:
    assert main([*options, "local", "--format", "seqio"]) == 0
    assert main([*options, str(store), "--format", "seqio"]) == 0
    assert contents(store) == contents(tmp_path / "local")


def test_seqio_caches_at_s3_are_copied(options: list[str], tmp_path: Path) -> None:
    assert main([*options, "local", "--format", "seqio"]) == 0
    store = RemotePath(f"s3://{BUCKET}/{tmp_path.name}")
    put(tmp_path / "local", store)
    (store / "other/COMPLETED").write_text("")
    (store / "sums/test.tfrecord-00000-of-00001").write_bytes(b"not read")
    seqio = {"loader": "seqio", "use_cached": True, "module": "own_tasks"}
    (copy,) = loader.local_cache_dirs(data(store, **seqio))
    found, expected = contents(Path(copy)), contents(tmp_path / "local")
    found = {name: each for name, each in found.items() if not Path(name).name.startswith(".")}
    tasks = ("sums/", "products/")
    assert found == {name: each for name, each in expected.items() if name.startswith(tasks)}
    assert loader.local_cache_dirs(data("local", **seqio)) == ["local"]
    assert loader.local_cache_dirs(data("gs://bucket/cache", **seqio)) == ["gs://bucket/cache"]


def test_a_missing_cache_in_a_store_is_named(
    store: RemotePath, options: list[str], servers: Servers
) -> None:
    with pytest.raises(UserError, match=f"data.cache_dir: {store}/none does not exist; to write"):
        TokenCache(store / "none")
    (store / "letters.txt").write_text("mine")
    with pytest.raises(UserError, match=f"data.cache_dir: {store} has no token cache; to write"):
        TokenCache(store)
    with pytest.raises(UserError, match=r"data.cache_dir: https://.* cannot be listed"):
        TokenCache(servers.http.replace("http", "https"))


def test_a_damaged_file_in_a_store_is_named(
    store: RemotePath, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options, str(store)]) == 0
    file = store / "sums/train-00001-of-00003.array_record"
    file.write_bytes(file.read_bytes()[::-1])
    (store / "products/train-00000-of-00003.array_record").unlink()
    assert main([*options, str(store), "--check"]) == 1
    shown = capsys.readouterr().out
    assert f"{file} is damaged: its checksum does not match" in shown
    assert f"{store}/products/train-00000-of-00003.array_record is missing" in shown
    with pytest.raises(UserError, match=r"products/train-00000-of-00003\.array_record is missing"):
        batches(store)
