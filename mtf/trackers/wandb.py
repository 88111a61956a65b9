"""Weights & Biases (https://docs.wandb.ai)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Literal

from mtf.errors import UserError
from mtf.extras import check_extra
from mtf.run_end import RunEnd
from mtf.trackers.tracker import Sample, TrackedRun, Tracker

# Less than a run waits for its trackers. What is not uploaded by then stays for `wandb sync`.
_SECONDS_TO_FINISH = 50.0


@dataclasses.dataclass
class Wandb(Tracker):
    """Tracks a run with Weights & Biases; settings that are None are those of its environment.

    Attributes:
      project: the project.
      entity: the user or team.
      name: the name of the run; None: that of the run directory.
      group: the group of the run.
      tags: tags of the run.
      notes: a description of the run.
      mode: "online"; or "offline", which stores all in the run directory for `wandb sync`.
    """

    project: str | None = None
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    mode: Literal["online", "offline", "disabled"] | None = None

    def check(self) -> None:
        """Raises UserError if the package is missing, or there is no key for the server."""
        check_extra("wandb", "Weights & Biases", "wandb")
        if (self.mode or os.environ.get("WANDB_MODE", "online")) == "online":
            import wandb

            if not wandb.login(verify=False, prompt=False):
                raise UserError(
                    "trackers: Wandb has no API key. Run `wandb login`, set WANDB_API_KEY, or set "
                    "its mode to 'offline'."
                )

    def start(self, run: TrackedRun) -> str:
        """Starts a run, or continues that of `run.id`; returns its id."""
        import wandb

        is_local = "://" not in run.directory
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            name=self.name or run.name,
            group=self.group,
            tags=self.tags,
            notes=self.notes,
            mode=self.mode,
            id=run.id,
            resume=None if run.id is None else "allow",
            dir=run.directory if is_local and "WANDB_DIR" not in os.environ else None,
            config=dict(run.config),
            allow_val_change=True,  # A resumed run may train for more steps.
            reinit="create_new",
            settings=wandb.Settings(console="off", finish_timeout=_SECONDS_TO_FINISH),
        )
        # W&B drops what it is sent for a step of its own that is past, so this is another metric.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs metrics."""
        self._run.log({"step": step, **metrics})

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Logs examples as the table "samples"."""
        import wandb

        table = wandb.Table(columns=list(Sample._fields), data=[list(each) for each in samples])
        self._run.log({"step": step, "samples": table})

    def log_checkpoint(self, step: int, path: str) -> None:
        """Logs the path as "checkpoint"; the files are not uploaded."""
        self._run.log({"step": step, "checkpoint": path})

    def end(self, end: RunEnd) -> None:
        """Ends the run; W&B shows one that failed as failed."""
        self._run.summary["end"] = end.how if end.reason is None else f"{end.how}: {end.reason}"
        self._run.finish(exit_code=int(end.how == "failed"))
