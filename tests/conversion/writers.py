"""Small checkpoints, written as T5X and Orbax write them, from numbers of numpy's generator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import msgpack
import numpy as np
import tensorstore as ts
from flax.traverse_util import unflatten_dict
from safetensors.numpy import load_file

from conversion import Checkpoint, huggingface, open_checkpoint, tensor_bundle
from conversion.tensor import DTYPES
from mtf.inference.opening import network_config

Array = np.ndarray[Any, Any]


def random_parameters(
    *,
    vocab_size: int = 384,
    emb_dim: int = 32,
    num_heads: int = 3,
    head_dim: int = 8,
    num_encoder_layers: int = 2,
    num_decoder_layers: int = 2,
    mlp_dim: int = 48,
    gated: bool = True,
    tied: bool = False,
    bias_per_layer: bool = False,
    seed: int = 0,
) -> dict[str, Array]:
    """Parameters of a T5 under T5X's names, of the sizes that FACTS gives them at the start."""
    rng = np.random.default_rng(seed)
    joined = num_heads * head_dim

    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    def scale() -> Array:
        return rng.uniform(0.5, 1.5, emb_dim).astype(np.float32)

    def attention(name: str) -> dict[str, Array]:
        return {
            **{f"{name}/{part}/kernel": normal(emb_dim, joined) for part in ("key", "value")},
            f"{name}/query/kernel": normal(emb_dim, joined) / np.float32(np.sqrt(head_dim)),
            f"{name}/out/kernel": normal(joined, emb_dim),
        }

    def mlp() -> dict[str, Array]:
        names = ("wi_0", "wi_1") if gated else ("wi",)
        return {
            **{f"mlp/{name}/kernel": normal(emb_dim, mlp_dim) for name in names},
            "mlp/wo/kernel": normal(mlp_dim, emb_dim),
            "pre_mlp_layer_norm/scale": scale(),
        }

    tree = {"token_embedder/embedding": rng.standard_normal((vocab_size, emb_dim), np.float32)}
    for side, depth in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        for i in range(depth if bias_per_layer else 1):
            bias = f"{side}/{f'layers_{i}/' if bias_per_layer else ''}relpos_bias/rel_embedding"
            tree[bias] = rng.standard_normal((num_heads, 32), np.float32)
        tree[f"{side}/{side}_norm/scale"] = scale()
        for i in range(depth):
            layer = mlp()
            if side == "encoder":
                layer |= attention("attention") | {"pre_attention_layer_norm/scale": scale()}
            else:
                layer |= attention("self_attention") | attention("encoder_decoder_attention")
                layer |= {
                    "pre_self_attention_layer_norm/scale": scale(),
                    "pre_cross_attention_layer_norm/scale": scale(),
                }
            tree |= {f"{side}/layers_{i}/{name}": value for name, value in layer.items()}
    if not tied:
        tree["decoder/logits_dense/kernel"] = normal(emb_dim, vocab_size)
    return tree


def flax_extension(array: Array) -> msgpack.ExtType:
    """An array as flax.serialization packs it."""
    packed = msgpack.packb((list(array.shape), array.dtype.name, array.tobytes()))
    return msgpack.ExtType(1, packed)


def stacked(parameters: dict[str, Array], head_dim: int = 8) -> dict[str, Array]:
    """The parameters as T5X's scanned network has them, by FACTS's description."""
    found: dict[str, list[Array]] = {}
    for name, array in sorted(parameters.items(), key=lambda item: len(item[0])):
        side, layer, *rest = name.split("/")
        if not layer.startswith("layers_"):
            found[name] = [array]
            continue
        if rest[-2] in ("query", "key", "value"):
            array = array.reshape(array.shape[0], -1, head_dim)
        elif rest[-2] == "out":
            array = array.reshape(-1, head_dim, array.shape[1])
        found.setdefault("/".join([side, side, *rest]), []).append(array)
    one = {name for name in parameters if "/layers_" not in name}
    return {
        name: arrays[0] if name in one else np.stack(arrays, axis=1)
        for name, arrays in found.items()
    }


def flax_tree(directory: Path) -> dict[str, Array]:
    """The tensors of a directory with `model.safetensors` under Flax's names."""
    found = {}
    for name, array in load_file(directory / "model.safetensors").items():
        *parents, last = name.split(".")
        if "embed" in name or name == "shared.weight" or parents[-1] == "relative_attention_bias":
            last = "embedding"
        elif array.ndim == 2:
            last, array = "kernel", array.T
        found["/".join([*parents, last])] = np.ascontiguousarray(array)
    return found


def write_flax(directory: Path, leaves: dict[str, Any] | None = None) -> Path:
    """Writes `flax_model.msgpack` instead of `model.safetensors`; returns the file."""
    file = directory / "flax_model.msgpack"
    leaves = leaves or {name: flax_extension(x) for name, x in flax_tree(directory).items()}
    file.write_bytes(msgpack.packb(unflatten_dict(leaves, sep="/")))
    (directory / "model.safetensors").unlink()
    return file


def write_pytorch(directory: Path, *, is_zip: bool = True) -> Path:
    """Writes `pytorch_model.bin` instead of `model.safetensors`; returns the file."""
    import torch

    tensors = load_file(directory / "model.safetensors")
    file = directory / "pytorch_model.bin"
    content = {name: torch.from_numpy(array) for name, array in tensors.items()}
    torch.save(content, file, _use_new_zipfile_serialization=is_zip)
    (directory / "model.safetensors").unlink()
    return file


def write_t5x(
    directory: Path,
    parameters: dict[str, Array],
    step: int = 7,
    *,
    kvstore: str = "file",
    dtype: str = "float32",
    inline: Iterable[str] = (),
    compress: bool = True,
    adafactor: bool = False,
    slots: Mapping[str, Array] | None = None,
) -> Path:
    """Writes T5X's zarr+msgpack layout; returns the checkpoint's directory.

    Args:
      directory: gets `checkpoint_{step}`.
      parameters: by T5X's names, without "target/".
      step: of the checkpoint.
      kvstore: how the msgpack file names the arrays' place: "file", "gfile", "gcs", or "older" for
        a path at the top level.
      dtype: of the stored parameters.
      compress: whether arrays are compressed.
      inline: names stored in the msgpack file itself.
      adafactor: whether to write Adafactor's state of parameters that are not factored.
      slots: other optimizer state, by names without "state/param_states/"; inline unless it ends
        with a parameter's name or has its shape.
    """
    path = directory / f"checkpoint_{step}"
    path.mkdir(parents=True)
    arrays = {f"target/{name}": value for name, value in parameters.items()}
    leaves: dict[str, Any] = {}
    if adafactor:
        for name, value in parameters.items():
            owner = f"state/param_states/{name}"
            arrays[f"{owner}/v"] = np.full(value.shape, 1e-4, np.float32)
            for unused in ("m", "v_row", "v_col"):
                leaves[f"{owner}/{unused}"] = flax_extension(np.zeros(1, np.float32))
    for name, value in (slots or {}).items():
        owners = (name.rpartition("/")[0], name.partition("/")[2].partition("/")[2])
        if any(x in parameters and parameters[x].shape == value.shape for x in owners):
            arrays[f"state/param_states/{name}"] = value
        else:
            leaves[f"state/param_states/{name}"] = flax_extension(value)
    for name, value in arrays.items():
        own = dtype if name.startswith("target/") or slots is None else "float32"
        stored = value.astype(ml_dtypes.bfloat16 if own == "bfloat16" else own)
        if name.removeprefix("target/") in inline:
            leaves[name] = flax_extension(stored)
            continue
        dotted = name.replace("/", ".")
        metadata = {
            "shape": list(value.shape),
            # Two chunks along the first axis, the second one ragged when the size is odd.
            "chunks": [max(1, -(-value.shape[0] // 2)), *value.shape[1:]],
            "compressor": {"id": "gzip", "level": 1} if compress else None,
        }
        ts.open(
            {
                "driver": "zarr",
                "kvstore": {"driver": "file", "path": f"{path / dotted}/"},
                "metadata": {**metadata, "dtype": own if own == "bfloat16" else "<f4"},
            },
            create=True,
        ).result().write(stored).result()
        places: dict[str, dict[str, Any]] = {
            "file": {"kvstore": {"driver": "file", "path": f"{dotted}/"}},
            "gfile": {"kvstore": {"driver": "gfile", "path": f"/elsewhere/checkpoint_7/{dotted}/"}},
            "gcs": {"kvstore": {"driver": "gcs", "bucket": "b", "path": f"models/c_7/{dotted}/"}},
            "older": {"kvstore": {"driver": "gfile"}, "path": dotted},
        }
        leaves[name] = {"driver": "zarr", "dtype": own, "metadata": metadata, **places[kvstore]}
    leaves["state/step"] = flax_extension(np.asarray(step, np.int32))
    optimizer = unflatten_dict(leaves, sep="/")
    optimizer["state"].setdefault("param_states", {})
    content = msgpack.packb({"version": 3, "optimizer": optimizer})
    (path / "checkpoint").write_bytes(content)
    return path


def write_orbax(directory: Path, parameters: dict[str, Array], step: int = 7) -> Path:
    """Writes `checkpoint_{step}/state` with Orbax itself; returns the checkpoint's directory."""
    import orbax.checkpoint as ocp

    path = directory / f"checkpoint_{step}"
    tree = {
        "target": unflatten_dict(parameters, sep="/"),
        "state": {"step": np.asarray(step, np.int32)},
    }
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save((path / "state").resolve(), tree)
    return path


# T5X's name → Mesh TensorFlow's, of what is in a layer, and in which of the layer's parts it is.
_MESH = {
    "query": "q",
    "key": "k",
    "value": "v",
    "out": "o",
    "attention": "SelfAttention",
    "self_attention": "SelfAttention",
    "encoder_decoder_attention": "EncDecAttention",
    "mlp": "DenseReluDense",
}


def mesh_name(name: str) -> str:
    """Mesh TensorFlow's name of a parameter of T5X."""
    fixed = {
        "token_embedder/embedding": "shared/embedding",
        "decoder/logits_dense/kernel": "decoder/logits/kernel",
    }
    side, *rest = name.split("/")
    if name in fixed:
        return fixed[name]
    if rest == [f"{side}_norm", "scale"]:
        return f"{side}/final_layer_norm/scale"
    if not rest[0].startswith("layers_"):
        rest = ["layers_0", *rest]
    block = f"{side}/block_{int(rest[0].removeprefix('layers_')):03d}"
    last = 2 if side == "decoder" else 1
    part = last if "mlp" in rest[1] else int("cross" in rest[1] or "encoder_decoder" in rest[1])
    if rest[1] == "relpos_bias":
        return f"{block}/layer_000/SelfAttention/relative_attention_bias"
    if rest[2] == "scale":
        return f"{block}/layer_{part:03d}/layer_norm/scale"
    kernel = f"{rest[2]}/kernel" if rest[1] == "mlp" else _MESH[rest[2]]
    return f"{block}/layer_{part:03d}/{_MESH[rest[1]]}/{kernel}"


def mesh(parameters: dict[str, Array], step: int = 7) -> dict[str, Array]:
    """The parameters and the step under Mesh TensorFlow's names."""
    arrays = {mesh_name(name): array for name, array in parameters.items()}
    return {**arrays, "global_step": np.asarray(step, np.int64)}


def write_bundle(
    directory: Path, arrays: dict[str, Array], step: int = 7, num_files: int = 1
) -> Path:
    """Writes a checkpoint as TensorFlow does; returns its path without the files' endings.

    The index has blocks of 8 entries, in which a key begins with a part of the previous one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    prefix = directory / f"model.ckpt-{step}"
    files = [bytearray() for _ in range(num_files)]
    entries = {b"": tensor_bundle._Header(shards=num_files).SerializeToString()}
    for number, (name, array) in enumerate(sorted(arrays.items())):
        data, shard = array.tobytes(), number % num_files
        kinds = {"float32": 1, "int32": 3, "int64": 9, "bfloat16": 14}
        entry = tensor_bundle._Entry(dtype=kinds[array.dtype.name], shard_id=shard)
        entry.offset, entry.size = len(files[shard]), len(data)
        entry.crc32c = int.from_bytes(_masked_crc(data), "little")
        for size in array.shape:
            entry.shape.dim.add(size=size)
        entries[name.encode()] = entry.SerializeToString()
        files[shard] += data
    for number, content in enumerate(files):
        file = prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{num_files:05d}")
        file.write_bytes(content)
    table, index = bytearray(), {}
    items = sorted(entries.items())
    for start in range(0, len(items), 8):
        block = dict(items[start : start + 8])
        index[max(block)] = _append_block(table, block)
    metaindex = _append_block(table, {})
    handles = metaindex + _append_block(table, index)
    footer = handles.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")
    prefix.with_name(f"{prefix.name}.index").write_bytes(table + footer)
    (directory / "checkpoint").write_text(f'model_checkpoint_path: "{prefix.name}"\n')
    return prefix


def _append_block(table: bytearray, block: dict[bytes, bytes]) -> bytes:
    content, previous = b"", b""
    for key, value in block.items():
        pairs = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(previous, key, strict=False)
        )
        shared = len(list(pairs))
        lengths = (shared, len(key) - shared, len(value))
        content += b"".join(map(_varint, lengths)) + key[shared:] + value
        previous = key
    content += bytes(4) + (1).to_bytes(4, "little")  # one restart point, at 0
    start = len(table)
    table += content + b"\0" + _masked_crc(content + b"\0")
    return _varint(start) + _varint(len(content))


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    return masked.to_bytes(4, "little")


def assert_holds(
    found: Checkpoint | str | Path, expected: dict[str, Array], root: str = "target/"
) -> None:
    """Asserts that a checkpoint has exactly these arrays under `root`, bit by bit."""
    checkpoint = found if isinstance(found, Checkpoint) else open_checkpoint(found)
    tensors = checkpoint.tensors
    assert {name for name in tensors if name.startswith(root)} == {root + x for x in expected}
    for name, array in expected.items():
        tensor, read = tensors[root + name], tensors[root + name].read()
        assert (tensor.dtype, tensor.shape) == (array.dtype, array.shape), name
        assert (read.dtype, read.shape) == (array.dtype, array.shape), name
        assert read.tobytes() == array.tobytes(), name


def load_network(export: huggingface.Export) -> tuple[Any, dict[str, Any]]:
    """mtf's network of an export, and its parameters, rounded to the dtype of the export."""
    params = {
        name: tensor.cast(DTYPES[export.dtype]).read().astype(np.float32)
        for name, tensor in export.checkpoint.parameters().items()
    }
    config = network_config(
        export.architecture,
        relative_attention_max_distance=export.relative_attention_max_distance,
        dropout_rate=0.0,
        dtype="float32",
        scan_layers=False,
    )
    return config, unflatten_dict(params, sep="/")
