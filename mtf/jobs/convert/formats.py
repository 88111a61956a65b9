"""Lists the formats to which a checkpoint can be converted, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence

# Format → its description.
FORMATS = {
    "hf": "Hugging Face, for PyTorch",
    "t5x": "T5X's zarr and msgpack",
    "t5x_orbax": "T5X's Orbax layout",
    "mtf": "mtf's Orbax layout",
    "peft": "the LoRA adapters only, for PEFT",
}
_ONLY_HF = ("vocabulary", "config", "model_type", "max_shard_size", "push_to_hub")
# Format → settings that cannot be used with it. Further checks of `verify` are in `export`.
NOT_FOR: dict[str, Sequence[str]] = {
    **dict.fromkeys(("t5x", "t5x_orbax", "mtf"), _ONLY_HF),
    "peft": ("verify", "dtype", "optimizer", *_ONLY_HF),
}
# Format → default of `dtype`. In other formats, tensors keep their stored types.
DTYPES = {"hf": "float32"}
