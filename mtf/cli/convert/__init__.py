"""Implements `python -m mtf.convert`, which converts, inspects and compares checkpoints."""

# Output format → description of the format in the help.
FORMATS = {
    "hf": "Hugging Face, for PyTorch",
    "t5x": "T5X's zarr and msgpack",
    "t5x_orbax": "T5X's Orbax layout",
    "mtf": "mtf's Orbax layout",
    "peft": "the LoRA adapters only, for PEFT",
}
