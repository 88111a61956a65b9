"""Comet (https://www.comet.com/docs/v2)."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping, Sequence
from types import ModuleType

from mtf.errors import UserError
from mtf.extras import check_extra
from mtf.run_end import RunEnd
from mtf.trackers.tracker import Sample, TrackedRun, Tracker


@dataclasses.dataclass
class Comet(Tracker):
    """Tracks a run with Comet; settings that are None are those of its environment.

    Attributes:
      project: the project.
      workspace: the user or team.
      name: the name of the experiment; None: that of the run directory.
      tags: tags of the experiment.
      online: whether to send all to the server; False: at its end, the run stores all in the run
        directory for `comet upload`.
    """

    project: str | None = None
    workspace: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    online: bool | None = None

    def check(self) -> None:
        """Raises UserError if the package is missing, or there is no key for the server."""
        check_extra("comet_ml", "Comet", "comet")
        comet_ml = _comet_ml()
        online = comet_ml.get_config("comet.start.online") if self.online is None else self.online
        if online is not False and not comet_ml.get_config("comet.api_key"):
            raise UserError(
                "trackers: Comet has no API key. Run `comet login`, set COMET_API_KEY, or set "
                "its online to False."
            )

    def start(self, run: TrackedRun) -> str:
        """Starts an experiment, or continues that of `run.id`; returns its key."""
        comet_ml = _comet_ml()
        is_local = "://" not in run.directory
        own_folder = is_local and "COMET_OFFLINE_DIRECTORY" not in os.environ
        self._experiment = comet_ml.start(
            workspace=self.workspace,
            project_name=self.project,
            experiment_key=run.id,
            mode="create" if run.id is None else "get",
            online=self.online,
            experiment_config=comet_ml.ExperimentConfig(
                name=self.name or run.name,
                tags=list(self.tags),
                offline_directory=os.path.join(run.directory, "comet") if own_folder else None,
                log_code=False,
                parse_args=False,
                auto_output_logging=False,
                display_summary_level=0,
            ),
        )
        self._experiment.log_parameters(dict(run.config))
        return str(self._experiment.get_key())

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs metrics."""
        self._experiment.log_metrics(dict(metrics), step=step)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Logs examples as the table `samples-STEP.csv`."""
        self._experiment.set_step(step)
        rows = [list(each) for each in samples]
        self._experiment.log_table(f"samples-{step}.csv", rows, headers=list(Sample._fields))

    def log_checkpoint(self, step: int, path: str) -> None:
        """Logs the path as `checkpoint.STEP`; the files are not uploaded."""
        self._experiment.log_other(f"checkpoint.{step}", path)

    def end(self, end: RunEnd) -> None:
        """Ends the experiment; `end` shows how."""
        reason = "" if end.reason is None else f": {end.reason}"
        self._experiment.log_other("end", f"{end.how}{reason}")
        self._experiment.end()


def _comet_ml() -> ModuleType:
    """Imports Comet, so that it patches no libraries, such as MLflow, and reports no own errors."""
    os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")
    os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")
    return importlib.import_module("comet_ml")
