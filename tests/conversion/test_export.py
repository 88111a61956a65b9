"""What `mtf.convert --to hf` writes and refuses, seen without PyTorch."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from conversion import Checkpoint, Tensor, blocks, huggingface, open_checkpoint
from mtf import convert
from tests.conversion import writers
from tests.inference import models
from tests.small import python


def run(*arguments: object, to: str = "hf") -> int:
    return convert.main([*map(str, arguments), "--to", to])


def assert_refused(capsys: pytest.CaptureFixture[str], out: Path, status: int, *words: str) -> None:
    """Exit status 2, one message with these words and no traceback, and nothing written."""
    error = capsys.readouterr().err
    assert status == 2
    assert error.startswith("error: ")
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert not out.exists()
    assert not [path for path in out.parent.iterdir() if path.name.endswith(".tmp")]


def test_tensors_and_config(tmp_path: Path) -> None:
    parameters = writers.random_parameters(num_encoder_layers=3, num_decoder_layers=1)
    out = tmp_path / "new" / "out"
    assert run(writers.write_t5x(tmp_path, parameters), out, "--vocabulary", "none") == 0
    written = load_file(out / "model.safetensors")
    assert len(written) == len(parameters)
    kernel = parameters["encoder/layers_2/attention/query/kernel"]
    np.testing.assert_array_equal(
        written["encoder.block.2.layer.0.SelfAttention.q.weight"], kernel.T
    )
    np.testing.assert_array_equal(
        written["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"],
        parameters["decoder/relpos_bias/rel_embedding"].T,
    )
    np.testing.assert_array_equal(written["shared.weight"], parameters["token_embedder/embedding"])
    config = json.loads((out / "config.json").read_text())
    expected = {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": 384,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_heads": 3,
        "num_layers": 3,
        "num_decoder_layers": 1,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "scale_decoder_outputs": False,
        "relative_attention_max_distance": 128,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    assert {key: config[key] for key in expected} == expected
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation == {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}


def test_model_card(tmp_path: Path) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters(), 1000)
    assert run(source, tmp_path / "out") == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\ntags:\n- t5\n---\n")
    assert f"Source: `{source}` (T5X with zarr and msgpack, step 1,000)" in card
    assert "Class: `T5ForConditionalGeneration` of `transformers`" in card
    assert "inputs ended with EOS" in card and "The use of EOS is assumed" in card
    assert "This directory has no tokenizer." in card
    card = huggingface.model_card(huggingface.Export(open_checkpoint(source), inputs_add_eos=False))
    assert "inputs did not end with EOS" in card and "assumed" not in card


def test_t5_1_0_is_tied_and_scaled(tmp_path: Path) -> None:
    parameters = writers.random_parameters(gated=False, tied=True)
    assert run(writers.write_t5x(tmp_path, parameters), tmp_path / "out") == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is config["scale_decoder_outputs"] is True
    assert config["feed_forward_proj"] == "relu"
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")


def test_shards(tmp_path: Path) -> None:
    parameters = writers.random_parameters()
    source = writers.write_t5x(tmp_path, parameters)
    assert run(source, tmp_path / "one") == 0
    assert run(source, tmp_path / "many", "--max-shard-size", "20KB") == 0
    whole = load_file(tmp_path / "one" / "model.safetensors")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert len(files) > 5
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in whole.values())
    found = {}
    for file in files:
        shard = load_file(tmp_path / "many" / file)
        assert {name for name, home in index["weight_map"].items() if home == file} == shard.keys()
        assert sum(a.nbytes for a in shard.values()) <= 20_000 or len(shard) == 1
        with safe_open(tmp_path / "many" / file, "np") as opened:
            assert opened.metadata() == {"format": "pt"}
        found |= shard
    assert found.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_bfloat16_checkpoint_becomes_float32(tmp_path: Path) -> None:
    parameters = writers.random_parameters()
    assert run(writers.write_t5x(tmp_path, parameters, dtype="bfloat16"), tmp_path / "out") == 0
    written = load_file(tmp_path / "out" / "model.safetensors")
    kernel = parameters["decoder/logits_dense/kernel"].astype(ml_dtypes.bfloat16)
    assert written["lm_head.weight"].dtype == np.float32
    np.testing.assert_array_equal(written["lm_head.weight"], kernel.T.astype(np.float32))


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = writers.random_parameters(num_encoder_layers=12, num_decoder_layers=12)
    sizes = {32: 512, 24: 512, 48: 1024, 3: 8, 384: 1024}
    largest = 1024 * 512 * 4
    tensors = {}
    for name, value in names.items():
        shape = tuple(sizes[n] for n in value.shape)
        if name.endswith("rel_embedding"):
            shape = (8, 32)
        tensors[f"target/{name}"] = Tensor(
            f"target/{name}",
            shape,
            np.dtype(np.float32),
            lambda index, shape=shape: np.ones(shape, np.float32),
        )
    checkpoint = Checkpoint(tmp_path / "none", "orbax", 1, tensors)
    total = sum(4 * int(np.prod(tensor.shape)) for tensor in tensors.values())
    assert total > 50 * largest
    export = huggingface.Export(checkpoint, dtype="bfloat16")
    monkeypatch.setattr(blocks, "_BYTES_IN_PROGRESS", largest)
    tracemalloc.start()
    try:
        huggingface.write_export(export, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "model.safetensors").stat().st_size > total // 2
    assert peak < 4 * largest


def test_parameters_that_do_not_fit_are_all_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = writers.random_parameters()
    del parameters["decoder/layers_1/mlp/wo/kernel"]
    parameters["encoder/layers_0/attention/query/bias"] = np.zeros(24, np.float32)
    parameters["encoder/layers_1/mlp/wi_0/kernel"] = np.zeros((32, 47), np.float32)
    out = tmp_path / "out"
    status = run(writers.write_t5x(tmp_path, parameters), out)
    assert_refused(
        capsys,
        out,
        status,
        "missing: target/decoder/layers_1/mlp/wo/kernel, shape (48, 32)",
        "unexpected: target/encoder/layers_0/attention/query/bias, shape (24,)",
        "wrong shape: target/encoder/layers_1/mlp/wi_0/kernel has (32, 47); expected (32, 48)",
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "float16"], ["not float16", "65,504"]),
        (["--max-shard-size", "big"], ["--max-shard-size big", "5GB"]),
        (["--vocabulary", "no/such.model"], ["no SentencePiece model at no/such.model"]),
        (["--vocabulary", __file__], ["is not a SentencePiece model"]),
    ],
)
def test_options_that_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: list[str]
) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters())
    out = tmp_path / "out"
    assert_refused(capsys, out, run(source, out, *options), *words)


def test_vocabulary_larger_than_the_embedding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters(vocab_size=258))
    out = tmp_path / "out"
    assert_refused(capsys, out, run(source, out, "--vocabulary", "byt5"), "259 ids", "258 rows")


def test_verify_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out = tmp_path / "out"
    # Before anything else: the checkpoint, which is not there either, is not looked at.
    status = run(tmp_path / "nowhere", out, "--verify")
    assert_refused(capsys, out, status, "torch and transformers", "pip install 'mtf-jax[torch]'")


def test_existing_output_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters())
    out = tmp_path / "out"
    out.mkdir()
    assert run(source, out) == 0  # empty is fine
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert run(source, out) == 2
    assert "is not empty" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("value", "to"), [(np.nan, "hf"), (-np.inf, "hf"), (np.nan, "t5x"), (np.nan, "t5x_orbax")]
)
def test_values_that_are_not_finite_are_refused_unless_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float, to: str
) -> None:
    parameters = writers.random_parameters()
    name = "decoder/layers_1/mlp/wo/kernel"
    parameters[name][3, 2] = value
    source, out = writers.write_t5x(tmp_path, parameters), tmp_path / "out"
    number = f"(1 of {parameters[name].size:,} values)"
    problem = f"The tensor target/{name} of {source} contains NaN or infinity {number}"
    assert_refused(capsys, out, run(source, out, to=to), problem, "--allow-non-finite")
    assert run(source, out, "--allow-non-finite", to=to) == 0
    writers.assert_holds(out, parameters)


def test_a_run_directory_names_its_vocabulary(tmp_path: Path) -> None:
    settings = {"mlp_activations": ("silu", "linear"), "relative_attention_max_distance": 64}
    network = {f"model__network__{name}": value for name, value in settings.items()}
    run_dir = models.write_run(tmp_path / "run", 10, **network, data__vocabulary__extra_ids=20)
    writers.write_orbax(run_dir / "checkpoints", writers.random_parameters(), 20)
    assert run(run_dir, tmp_path / "out", "--step", "10") == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["relative_attention_max_distance"] == 64
    assert config["feed_forward_proj"] == "gated-silu"
    tokenizer = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "ByT5Tokenizer"
    assert tokenizer["added_tokens_decoder"]["278"]["content"] == "<extra_id_0>"  # 3 + 256 + 20 - 1
    np.testing.assert_array_equal(
        load_file(tmp_path / "out" / "model.safetensors")["shared.weight"],
        writers.random_parameters(**models.SIZES, seed=2)["token_embedder/embedding"],
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from mtf import convert\n"
        "try: convert.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'jax', 'numpy', 'tensorstore', 'torch'} & set(sys.modules)))"
    )
    done = python("-c", code)
    assert "CHECKPOINT OUT_DIR" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
