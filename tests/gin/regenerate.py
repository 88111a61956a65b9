"""Writes the tables of gin bindings in docs/t5x.md: `python -m tests.gin.regenerate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mtf.cli.command import wrapped
from mtf.cli.gin.rows import Section
from mtf.cli.gin.t5x_table import NO_SEED, T5X

PAGE = Path(__file__).resolve().parents[2] / "docs" / "t5x.md"
BEGIN = "<!-- tables of gin bindings, written by python -m tests.gin.regenerate -->\n"
END = "<!-- end of the tables of gin bindings -->\n"

# Group → its sections.
GROUPS = {
    "Training (pretrain.gin, finetune.gin)": (
        *("train", "train_data", "eval_data", "infer_eval_data", "evaluator", "json_logger"),
        *("trainer", "schedule", "nan_action", "checkpoint", "restore", "save", "best"),
        *("partitioner", "axis_rules"),
    ),
    "Models (t5, mt5, byt5, scalable_t5)": (
        *("model", "loss", "transformer", "network", "pieces", "bytes", "predict"),
        *("beam_search", "temperature_sample", "adafactor"),
    ),
    "Evaluation and inference (eval.gin, infer.gin)": (
        *("evaluate", "job_data", "job_restore", "job_evaluator", "infer"),
    ),
}
# Settings that only the translation has → the fields of the config that they determine.
SHOWN = {
    "relative_steps": ("train_steps",),
    "axis_rules.activations": ("partitioner.logical_axis_rules",),
    "axis_rules.parameters": ("partitioner.logical_axis_rules",),
}
# Notes of the command → what the page has in their place.
_NOTES = {NO_SEED: "None means mtf's fixed seed"}


def page(text: str) -> str:
    """The page with the tables of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}{END}{after}"


def tables() -> str:
    """All tables."""
    parts = (f"### {title}\n\n{_table([T5X[n] for n in names])}" for title, names in GROUPS.items())
    return "".join(parts)


def _table(sections: Sequence[Section]) -> str:
    """The parameters that become other fields or values; the page says what holds for the rest."""
    lines = []
    for section in sections:
        found = []
        for row in section.rows:
            if row.path is None:
                continue
            fields, note = SHOWN.get(row.path, (row.path,)), _NOTES.get(row.note, row.note)
            in_brackets = f" ({note})" if note else ""
            is_same = fields == (row.path,) and row.path.rpartition(".")[2] == row.parameter
            if not is_same:
                found.append(f"`{row.parameter}` → {_code(fields)}{in_brackets}")
            elif note:
                found.append(f"`{row.parameter}`{in_brackets}")
        if found:
            lines.append(wrapped(f"* **`{section.name}`** {'; '.join(found)}", 120, "  "))
    return "\n".join([*lines, ""]) + "\n" * bool(lines)


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(f"Wrote {PAGE}.")
