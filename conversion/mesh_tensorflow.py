"""Opens checkpoints of Mesh TensorFlow's T5 (and mT5, ByT5, T0, mT0) under T5X's names.

As in T5X, matrices have the same orientation, so a tensor only changes its name.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from conversion.tensor import Checkpoint, ConversionError, Index, Tensor, array_tensor
from conversion.tensor_bundle import open_bundle
from mtf.copies import nearest_copy
from mtf.storage import AnyPath, StorePath

_NAME = re.compile(r"model\.ckpt-(\d+)")
_LATEST = re.compile(r'^model_checkpoint_path: "(?:.*/)?([^"/]+)"', re.MULTILINE)
_BLOCK = re.compile(r"/block_(\d+)/")
# Later versions call all norms rms_norm.
_RMS_NORM = re.compile(r"(/layer_\d+/)rms_norm/")
_FINAL_NORM = re.compile(r"^(encoder|decoder)/rms_norm/")
_BIAS = re.compile(r"(?P<side>encoder|decoder)/layers_(?P<layer>\d+)/relpos_bias/")

# Slots of Adafactor in Mesh TensorFlow and T5X. T5X stores an unused one as a zero.
_SLOTS = {"_slot_vr": "v_row", "_slot_vc": "v_col", "_slot_v": "v"}
_T5X_SLOTS = ("m", "v", "v_col", "v_row")

_ATTENTION = {"q": "query/kernel", "k": "key/kernel", "v": "value/kernel", "o": "out/kernel"}
_MLP = {f"{name}/kernel": f"{name}/kernel" for name in ("wi", "wi_0", "wi_1", "wo")}

# The sublayers of a block: T5X's name of the norm, Mesh TensorFlow's name, T5X's name, the tensors.
_SUBLAYERS = {
    "encoder": (
        ("pre_attention_layer_norm", "SelfAttention", "attention", _ATTENTION),
        ("pre_mlp_layer_norm", "DenseReluDense", "mlp", _MLP),
    ),
    "decoder": (
        ("pre_self_attention_layer_norm", "SelfAttention", "self_attention", _ATTENTION),
        (
            "pre_cross_attention_layer_norm",
            "EncDecAttention",
            "encoder_decoder_attention",
            _ATTENTION,
        ),
        ("pre_mlp_layer_norm", "DenseReluDense", "mlp", _MLP),
    ),
}


def _rows() -> dict[str, str]:
    """Returns Mesh TensorFlow's name → T5X's, in which {n} is the number of the block."""
    rows = {
        "shared/embedding": "token_embedder/embedding",
        "decoder/logits/kernel": "decoder/logits_dense/kernel",
    }
    for side, sublayers in _SUBLAYERS.items():
        rows[f"{side}/final_layer_norm/scale"] = f"{side}/{side}_norm/scale"
        bias = f"{side}/block_{{n}}/layer_000/SelfAttention/relative_attention_bias"
        rows[bias] = f"{side}/layers_{{n}}/relpos_bias/rel_embedding"
        for number, (norm, theirs, ours, tensors) in enumerate(sublayers):
            block = f"{side}/block_{{n}}/layer_{number:03d}"
            layer = f"{side}/layers_{{n}}"
            rows[f"{block}/layer_norm/scale"] = f"{layer}/{norm}/scale"
            for their_tensor, our_tensor in tensors.items():
                rows[f"{block}/{theirs}/{their_tensor}"] = f"{layer}/{ours}/{our_tensor}"
    return rows


ROWS = _rows()


def is_prefix(path: str) -> bool:
    """Returns whether a path names the files of one checkpoint (`DIR/model.ckpt-{step}`)."""
    return _NAME.match(path.rpartition("/")[2]) is not None


def find_prefix(path: AnyPath, step: int | None = None) -> AnyPath | None:
    """Returns the path of a checkpoint's files without their endings; None if there is none.

    Args:
      path: a directory, one of the files, or the path without its ending. Of an address, the copy
        that `mtf.fetch` has made is returned, if there is one.
      step: step of the checkpoint in a directory of several; by default the one that the file
        `checkpoint` names, else the latest.

    Raises:
      ConversionError: if the directory has checkpoints, but none of this step.
    """
    single = _NAME.match(path.name)
    if single:
        path = nearest_copy(path.with_name(f"{single[0]}.index"))
        if not path.is_file():
            return None
        if step not in (None, int(single[1])):
            raise ConversionError(
                f"{path} is the checkpoint of step {single[1]}, but step {step} was requested."
            )
        return path.with_name(single[0])
    if isinstance(path, StorePath) and not path.is_listable:
        return None  # Name the checkpoint itself.
    names = [file.name.removesuffix(".index") for file in path.glob("model.ckpt-*.index")]
    steps = {int(match[1]): match[0] for name in names if (match := _NAME.fullmatch(name))}
    if not steps:
        return None
    if step is not None:
        if step not in steps:
            shown = ", ".join(map(str, sorted(sorted(steps, key=lambda s: abs(s - step))[:5])))
            raise ConversionError(f"{path} has no checkpoint of step {step}; it has {shown}.")
        return find_prefix(path / steps[step])
    note = path / "checkpoint"
    latest = (
        _LATEST.search(note.read_bytes().decode("utf-8", "replace")) if note.is_file() else None
    )
    is_noted = latest is not None and latest[1] in steps.values()
    return find_prefix(path / (latest[1] if latest and is_noted else steps[max(steps)]))


def open_mesh_tensorflow(prefix: AnyPath) -> Checkpoint:
    """Opens the checkpoint of the files `prefix.index` and `prefix.data-*`.

    Raises:
      ConversionError: if it has tensors that are not of a T5.
      IncompleteCheckpoint: if a file is missing, truncated or damaged.
    """
    stored = open_bundle(prefix)
    names = {theirs: t5x_name(theirs) for theirs in stored}
    unknown = sorted(f"{name} {stored[name].shape}" for name, ours in names.items() if ours is None)
    if unknown:
        raise ConversionError(
            f"{prefix} is not a T5 of Mesh TensorFlow; unexpected tensors ({len(unknown)}): "
            f"{', '.join(unknown[:5])}{', …' if len(unknown) > 5 else ''}."
        )
    found = {ours: stored[theirs] for theirs, ours in names.items() if ours is not None}
    biases = [match for name in found if (match := _BIAS.search(name))]
    if all(match["layer"] == "0" for match in biases):  # one bias for all layers
        found = {_BIAS.sub(r"\g<side>/relpos_bias/", name): t for name, t in found.items()}
    tensors = {name: tensor.view(name, transposed=False) for name, tensor in found.items()}
    if "state/step" in tensors:
        tensors["state/step"] = _int32(tensors["state/step"])
    return Checkpoint(
        prefix,
        "mesh-tensorflow",
        int(prefix.name.rpartition("-")[2]),
        {**tensors, **_unused_slots(tensors)},
    )


def t5x_name(theirs: str) -> str | None:
    """Returns T5X's name of a tensor; None if a T5 has none of this name.

    A bias of the first block is always named as that of layer 0, even if all layers share it.
    """
    if theirs == "global_step":
        return "state/step"
    slot = next((slot for slot in _SLOTS if theirs.endswith(slot)), "")
    name = _RMS_NORM.sub(r"\1layer_norm/", theirs.removesuffix(slot))
    name = _FINAL_NORM.sub(r"\1/final_layer_norm/", name)
    block = _BLOCK.search(name)
    row = ROWS.get(_BLOCK.sub("/block_{n}/", name))
    if row is None:
        return None
    ours = row.format(n=int(block[1])) if block else row
    return f"state/param_states/{ours}/{_SLOTS[slot]}" if slot else f"target/{ours}"


def _unused_slots(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the slots that T5X's Adafactor has besides those of `tensors`: zeros."""
    roots = {name.rpartition("/")[0] for name in tensors if name.startswith("state/param_states/")}
    names = [f"{root}/{slot}" for root in sorted(roots) for slot in _T5X_SLOTS]
    zero = np.zeros(1, np.float32)
    return {name: array_tensor(name, zero) for name in names if name not in tensors}


def _int32(tensor: Tensor) -> Tensor:
    def read(index: Index) -> np.ndarray[Any, Any]:
        return tensor.read(index).astype(np.int32)

    return Tensor(tensor.name, tensor.shape, np.dtype(np.int32), read, where=tensor.where)
