"""What a sweep's directory says about it: `sweep.json`, which the same sweep finds again."""

from __future__ import annotations

import json
from typing import Any

import fiddle as fdl

from mtf import config as config_lib
from mtf.errors import UserError
from mtf.storage import AnyPath
from mtf.writing import write_atomically

PLAN = "sweep.json"


def write_plan(folder: AnyPath, config: fdl.Config, runs: dict[str, Any]) -> None:
    """Writes `sweep.json`, or checks that the one that is there is that of the same sweep.

    Args:
      folder: the directory of the sweep.
      config: the config of the runs, without the swept values.
      runs: what determines the runs of the sweep: their values, or how they are searched.

    Raises:
      UserError: the directory holds another sweep or a run; nothing is written.
    """
    file = folder / PLAN
    flat = config_lib.as_flat_text(config).splitlines()
    plan = {**runs, "config": [line for line in flat if not line.startswith("model_dir =")]}
    if not file.exists():
        if (folder / "config.json").exists():
            raise UserError(f"{folder} is the directory of a run; set model_dir to another one.")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(plan, indent=1) + "\n")
        return
    stored = json.loads(file.read_text(encoding="utf-8"))
    own_config = stored.pop("config")
    if stored != runs:
        counts = ""
        if "runs" in stored and "runs" in runs:
            counts = f"{len(stored['runs'])}, these are {len(runs['runs'])}; "
        raise UserError(
            f"{folder} has a sweep with other runs ({counts}see {file}). Pass the same --sweep "
            "options to continue it, or set model_dir to another directory."
        )
    if differ := sorted({*own_config} ^ {*plan["config"]}):
        raise UserError(
            f"{folder} has a sweep of another config: {'; '.join(differ[:4])}. Pass the same "
            "settings to continue it, or set model_dir to another directory."
        )
