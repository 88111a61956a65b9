"""The model card (`README.md`) of a model that is written in Hugging Face's format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conversion.families import describe

if TYPE_CHECKING:
    from conversion.huggingface import Export

_LAYOUTS = {
    "t5x-zarr": "T5X, zarr and msgpack",
    "orbax": "Orbax, of T5X or mtf",
    "huggingface": "Hugging Face",
    "mesh-tensorflow": "Mesh TensorFlow",
}


def model_card(export: Export) -> str:
    """Returns the text: where the weights came from, and whether inputs end with EOS."""
    checkpoint = export.checkpoint
    step = "" if checkpoint.step is None else f", step {checkpoint.step:,}"
    parameters = sum(math.prod(entry.shape) for entry in export.entries)
    name = f"Flax{export.class_name}" if export.weights == "flax" else export.class_name
    library = "`transformers` 4" if export.weights == "flax" else "`transformers`"
    assumed = " This is assumed, as for the published T5 models." if export.is_assumed else ""
    if export.inputs_add_eos:
        eos = "In training, inputs ended with EOS (`</s>`), which the tokenizer appends."
    else:
        eos = (
            "In training, inputs did not end with EOS (`</s>`). The tokenizer of this directory "
            "appends none; with another one, pass `add_special_tokens=False`. Targets end with EOS."
        )
    tokenizer = "" if export.tokenizer else "This directory has no tokenizer. "
    return f"""\
---
library_name: transformers
tags:
- {export.model_type}
---

# {checkpoint.source.rpartition("/")[2]}

These weights were converted by `python -m mtf.convert`.

* Source: `{checkpoint.source}` ({_LAYOUTS[checkpoint.layout]}{step})
* Class: `{name}` of {library}
* Parameters: {parameters:,}, {export.dtype}
* Network: {describe(export.architecture)}
* Activations of the MLP: {" × ".join(export.architecture.mlp_activations)}

{tokenizer}{eos}{assumed}
"""
