"""What classes in the config.json of older versions are called now.

A run directory names the classes of its config by module and name, and outlives both.
"""

from __future__ import annotations

from typing import Any

# Modules of version 0.1.0, and those of their classes that have another name today.
_ROOMS = ("checkpoints", "data", "decoding", "evaluation", "models", "partitioning", "training")
_MODULES = {
    "mtf.data.objectives": "mtf.tasks.objectives",
    "mtf.data.vocabularies": "mtf.text.vocabularies",
    **{f"mtf.{room}.config": f"mtf.{room}.settings" for room in _ROOMS},
}
_NOW_CONFIGS = (
    *("AdamW", "Adafactor", "Decoding", "HubStream", "InferEval", "RankFiles", "Schedule"),
    *("TaskMixture", "TextCorpora", "TextFiles", "Trainer"),
)
_CLASSES = {
    "EncoderDecoderModel": "ModelConfig",
    "PjitPartitioner": "PartitionerConfig",
    **{name: f"{name}Config" for name in _NOW_CONFIGS},
}


def with_todays_names(value: dict[str, Any]) -> dict[str, Any]:
    """Returns a JSON object of a config.json, with a class that has moved under its new name."""
    module, name = value.get("module"), value.get("name")
    if value.get("type") != "pyref" or module not in _MODULES:
        return value
    return {**value, "module": _MODULES[module], "name": _CLASSES.get(str(name), name)}
