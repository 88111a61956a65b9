"""Opens Mesh TensorFlow checkpoints of T5, mT5, ByT5, T0 and mT0 with T5X's names.

Matrices have the same orientation as in T5X, so only the names change.
"""

from __future__ import annotations

import re

import numpy as np

from conversion import mapping
from conversion.formats import MODEL_CKPT
from conversion.tensor import Checkpoint, ConversionError, Tensor, array_tensor
from conversion.tensor_bundle import open_bundle
from mtf.storage import AnyPath, is_listable
from mtf.storage.copies import nearest_copy

_NAME = re.compile(MODEL_CKPT)
_LATEST = re.compile(r'^model_checkpoint_path: "(?:.*/)?([^"/]+)"', re.MULTILINE)
_BLOCK = re.compile(r"/block_(\d+)/")
# Later versions of Mesh TensorFlow call all norms rms_norm.
_RMS_NORM = re.compile(r"(/layer_\d+/)rms_norm/")
_FINAL_NORM = re.compile(r"^(encoder|decoder)/rms_norm/")
_BIAS = re.compile(r"(?P<side>encoder|decoder)/layers_(?P<layer>\d+)/relpos_bias/")

# Adafactor's slots: Mesh TensorFlow's suffix → T5X's name. T5X stores an unused slot as one zero.
_SLOTS = {"_slot_vr": "v_row", "_slot_vc": "v_col", "_slot_v": "v"}
_T5X_SLOTS = ("m", "v", "v_col", "v_row")

_MLP = ("wi", "wi_0", "wi_1", "wo")


def _rows() -> dict[str, str]:
    """Returns a dict mapping Mesh TensorFlow's names to T5X's, with {n} for the block number."""
    rows = {
        "shared/embedding": "token_embedder/embedding",
        "decoder/logits/kernel": "decoder/logits_dense/kernel",
    }
    for side, sublayers in mapping.SUBLAYERS.items():
        rows[f"{side}/final_layer_norm/scale"] = f"{side}/{side}_norm/scale"
        bias = f"{side}/block_{{n}}/layer_000/SelfAttention/relative_attention_bias"
        rows[bias] = f"{side}/layers_{{n}}/relpos_bias/rel_embedding"
        for number, (norm, ours, theirs) in enumerate(sublayers):
            block = f"{side}/block_{{n}}/layer_{number:03d}"
            layer = f"{side}/layers_{{n}}"
            rows[f"{block}/layer_norm/scale"] = f"{layer}/{norm}/scale"
            kernels = {f"{name}/kernel": name for name in _MLP}
            if ours != "mlp":
                kernels = {name: kernel for kernel, name in mapping.ATTENTION.items()}
            for their_kernel, kernel in kernels.items():
                rows[f"{block}/{theirs}/{their_kernel}"] = f"{layer}/{ours}/{kernel}/kernel"
    return rows


ROWS = _rows()


def find_prefix(path: AnyPath, step: int | None = None) -> AnyPath | None:
    """Returns the path of a checkpoint's files without suffix, or None if there is no checkpoint.

    Args:
      path: a directory, one of the checkpoint's files, or the path of the files without a suffix.
        If `mtf fetch` has copied a remote path, the path of the copy is returned.
      step: the step of the checkpoint to find if a directory contains several checkpoints; None for
        the checkpoint that the file `checkpoint` names, or the latest if it names none.

    Raises:
      ConversionError: `path` has one or more checkpoints, but none of this step.
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
    if not is_listable(path):
        return None  # The user has to pass the path of a checkpoint instead.
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
    text = note.read_bytes().decode("utf-8", "replace") if note.is_file() else ""
    latest = _LATEST.search(text)
    is_noted = latest is not None and latest[1] in steps.values()
    return find_prefix(path / (latest[1] if latest and is_noted else steps[max(steps)]))


def open_mesh_tensorflow(prefix: AnyPath, step: int | None) -> Checkpoint:
    """Opens the checkpoint of a step in the files `prefix.index` and `prefix.data-*`.

    Raises:
      ConversionError: the checkpoint contains tensors that a T5 network does not have.
      IncompleteCheckpoint: a file is missing, truncated or damaged.
    """
    stored = open_bundle(prefix)
    names = {theirs: t5x_name(theirs) for theirs in stored}
    unknown = sorted(f"{name} {stored[name].shape}" for name, ours in names.items() if ours is None)
    if unknown:
        raise ConversionError(
            f"{prefix} is not a Mesh TensorFlow checkpoint of a T5 model; it contains "
            f"{len(unknown)} unexpected tensors: "
            f"{', '.join(unknown[:5])}{', …' if len(unknown) > 5 else ''}."
        )
    found = {ours: stored[theirs] for theirs, ours in names.items() if ours is not None}
    biases = [match for name in found if (match := _BIAS.search(name))]
    if all(match["layer"] == "0" for match in biases):  # one bias for all layers
        found = {_BIAS.sub(r"\g<side>/relpos_bias/", name): t for name, t in found.items()}
    tensors = {name: tensor.view(name, transposed=False) for name, tensor in found.items()}
    if "state/step" in tensors:
        tensors["state/step"] = tensors["state/step"].cast(np.dtype(np.int32))
    return Checkpoint(prefix, "mesh-tensorflow", step, {**tensors, **_unused_slots(tensors)})


def t5x_name(theirs: str) -> str | None:
    """Returns T5X's name for a tensor, or None if T5 has no such tensor.

    The relative position bias in the first block is always named as the bias of layer 0, even if
    all layers share it.
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
    """Returns zeros for the unused Adafactor slots that T5X stores in addition to `tensors`."""
    roots = {name.rpartition("/")[0] for name in tensors if name.startswith("state/param_states/")}
    names = [f"{root}/{slot}" for root in sorted(roots) for slot in _T5X_SLOTS]
    zero = np.zeros(1, np.float32)
    return {name: array_tensor(name, zero) for name in names if name not in tensors}
