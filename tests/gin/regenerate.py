"""Writes the tables of gin bindings in docs/t5x.md: `python -m tests.gin.regenerate`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from mtf.cli.gin.mesh import MESH
from mtf.cli.gin.rows import Section
from mtf.cli.gin.t5x_table import NO_SEED, T5X

PAGE = Path(__file__).resolve().parents[2] / "docs" / "t5x.md"
BEGIN = "<!-- tables of gin bindings, written by python -m tests.gin.regenerate -->\n"
END = "<!-- end of the tables of gin bindings -->\n"

# Group → its sections.
GROUPS = {
    "Training (pretrain.gin, finetune.gin)": (
        *("train", "train_data", "eval_data", "infer_eval_data", "evaluator", "json_logger"),
        *("trainer", "schedule", "nan_action"),
    ),
    "Checkpoints and devices": (
        *("checkpoint", "restore", "save", "best", "partitioner", "axis_rules"),
    ),
    "Models (t5, mt5, byt5, scalable_t5)": (
        *("model", "loss", "transformer", "network", "pieces", "bytes", "predict"),
        *("beam_search", "temperature_sample"),
    ),
    "Adafactor": ("adafactor",),
    "Evaluation (eval.gin)": ("evaluate", "job_data", "job_restore", "job_evaluator"),
    "Inference (infer.gin)": ("infer",),
}
# Settings that only the translation has → the fields of the config that they determine.
SHOWN = {
    "relative_steps": ("train_steps",),
    "axis_rules.activations": ("partitioner.logical_axis_rules",),
    "axis_rules.parameters": ("partitioner.logical_axis_rules",),
    "mesh.mode": (),
    "mesh.batch_size": ("batch_size",),
    "mesh.schedule": ("optimizer.learning_rate.factors",),
    "mesh.split": ("data.split", "data.eval_split"),
    "mesh.cores": ("trainer.num_microbatches", "batch_size"),
    "mesh.tokens": ("trainer.num_microbatches",),
    "mesh.dropout_rate": ("model.network.dropout_rate",),
    "mesh.num_layers": ("model.network.num_encoder_layers", "model.network.num_decoder_layers"),
}
# Notes of the command → what the page has in their place.
_NOTES = {
    NO_SEED: "None means mtf's fixed seed",
    "by the longer length": "tokens are divided by the longer length",
    "number of cores": "number of cores; divided by `model_parallelism`, number of replicas",
}


def page(text: str) -> str:
    """The page with the tables of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}{END}{after}"


def tables() -> str:
    """All tables."""
    parts = []
    for title, names in GROUPS.items():
        parts.append(f"### {title}\n\n{_table([T5X[name] for name in names])}")
    parts.append(
        f"### Mesh TensorFlow (t5_mesh_transformer)\n\n{_table([*MESH.values()])}"
        "Other configurables have no effect in files. On the command line, they are mistakes.\n\n"
    )
    return "".join(parts)


def _table(sections: Sequence[Section]) -> str:
    """The parameters that become fields; the page says what holds for all others."""
    lines = []
    for section in sections:
        same: dict[str, list[str]] = {}  # settings → parameters with the names of their fields
        found: list[str] = []
        for row in section.rows:
            if row.path is None:
                continue
            fields, note = SHOWN.get(row.path, (row.path,)), _NOTES.get(row.note, row.note)
            settings, _, name = row.path.rpartition(".")
            in_brackets = f" ({note})" if note else ""
            if fields == (row.path,) and name == row.parameter:
                same.setdefault(settings, []).append(f"`{name}`{in_brackets}")
            elif fields:
                found.append(f"`{row.parameter}` → {_code(fields)}{in_brackets}")
            else:
                found.append(f"`{row.parameter}`: {note}")
        found = [
            f"{', '.join(names)}: the same" + (f" in `{settings}`" if settings else "")
            for settings, names in same.items()
        ] + found
        if found:
            item = f"* **`{section.name}`** {'; '.join(found)}"
            lines += textwrap.wrap(
                item, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
    return "\n".join(lines) + "\n\n"


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(f"Wrote {PAGE}.")
