"""Updates moved and renamed classes in a config.json, and leaves out removed fields."""

from __future__ import annotations

import re
from typing import Any

_TRACKERS = "mtf.training.trackers.libraries"
# Old module or package → new module or package.
_MODULES = {
    "mtf.data.objectives": "mtf.data.tasks.objectives",
    "mtf.data.vocabularies": "mtf.data.text.vocabularies",
    "mtf.decoding": "mtf.inference.decoding",
    "mtf.tasks": "mtf.data.tasks",
    "mtf.text": "mtf.data.text",
    **{f"mtf.trackers.{name}": _TRACKERS for name in ("mlflow", "wandb")},
}
# Classes that were renamed to NAMEConfig when the modules `config` were renamed to `settings`.
_NOW_CONFIGS = (
    *("AdamW", "Adafactor", "Decoding", "HubStream", "InferEval", "RankFiles", "Schedule"),
    *("TaskMixture", "TextCorpora", "TextFiles", "Trainer"),
)
_CLASSES = {
    "EncoderDecoderModel": "ModelConfig",
    "OwnDataConfig": "CustomDataConfig",
    "PjitPartitioner": "PartitionerConfig",
    **{name: f"{name}Config" for name in _NOW_CONFIGS},
}

# Fiddle stores the name of a field in a list of fields and beside its value.
_REMOVED_FIELDS = ("all", "logical_factor_rules", "push_to_hub")
_REMOVED = {*_REMOVED_FIELDS, *(f"Attr(name={name!r})" for name in _REMOVED_FIELDS)}


def with_todays_names(value: dict[str, Any]) -> dict[str, Any]:
    """Returns a JSON object of a config.json with old names replaced or removed."""
    if isinstance(items := value.get("items"), list):
        removed = _REMOVED
        if not any(isinstance(x, list) and x[-1] == "output" for x in items):
            removed = _REMOVED - {"all"}  # A key "all" of a dict, not the field of Convert.
        kept = [x for x in items if not (isinstance(x, list) and removed & {*map(str, x)})]
        return {**value, "items": kept}
    module, name = str(value.get("module")), str(value.get("name"))
    if module.startswith("recipes._own"):  # old name of the user's recipes.py or recipes/MODULE.py
        return {**value, "module": re.sub("_own_|[.]_own$", "", module)}
    if value.get("type") != "pyref" or not module.startswith("mtf."):
        return value
    old = next((old for old in _MODULES if f"{module}.".startswith(f"{old}.")), "")
    module = _MODULES.get(old, "") + module.removeprefix(old)
    module = re.sub(r"^(mtf\..+)\.config$|^(mtf\.jobs\.\w+)$", r"\1\2.settings", module)
    return {**value, "module": module, "name": _CLASSES.get(name, name)}
