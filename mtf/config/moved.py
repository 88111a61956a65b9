"""What classes in the config.json of older versions are called now.

A run directory names the classes of its config by module and name, and outlives both.
"""

from __future__ import annotations

from typing import Any

# Modules of version 0.1.0, and those of their classes that have another name today.
_MODULES = {
    "mtf.checkpoints.config": "mtf.checkpoints.settings",
    "mtf.data.config": "mtf.data.settings",
    "mtf.data.objectives": "mtf.tasks.objectives",
    "mtf.data.vocabularies": "mtf.text.vocabularies",
    "mtf.decoding.config": "mtf.decoding.settings",
    "mtf.evaluation.config": "mtf.evaluation.settings",
    "mtf.models.config": "mtf.models.settings",
    "mtf.partitioning.config": "mtf.partitioning.settings",
    "mtf.training.config": "mtf.training.settings",
}
_CLASSES = {
    "AdamW": "AdamWConfig",
    "Adafactor": "AdafactorConfig",
    "Decoding": "DecodingConfig",
    "EncoderDecoderModel": "ModelConfig",
    "HubStream": "HubStreamConfig",
    "InferEval": "InferEvalConfig",
    "PjitPartitioner": "PartitionerConfig",
    "RankFiles": "RankFilesConfig",
    "Schedule": "ScheduleConfig",
    "TaskMixture": "TaskMixtureConfig",
    "TextCorpora": "TextCorporaConfig",
    "TextFiles": "TextFilesConfig",
    "Trainer": "TrainerConfig",
}


def with_todays_names(value: dict[str, Any]) -> dict[str, Any]:
    """Returns a JSON object of a config.json, with a class that has moved under its new name."""
    module, name = value.get("module"), value.get("name")
    if value.get("type") != "pyref" or module not in _MODULES:
        return value
    return {**value, "module": _MODULES[module], "name": _CLASSES.get(str(name), name)}
