"""Runs a sweep as an Optuna study, which is stored in the directory of the sweep."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna

from mtf.base.errors import UserError
from mtf.base.writing import write_atomically, write_figure
from mtf.cli.sweep.values import Distributions, as_text, grid

optuna.logging.set_verbosity(optuna.logging.ERROR)

TABLE = "results.csv"
_STATES = {"COMPLETE": "finished", "FAIL": "failed", "RUNNING": "unfinished"}


class Study:
    """The trials of a sweep and their scores, stored as `optuna.journal` in the sweep's directory.

    A study that was killed resumes with its unfinished trials. Given the same scores,
    it proposes the same values as an uninterrupted study.
    """

    def __init__(
        self,
        folder: Path,
        values: Distributions,
        search: Literal["grid", "random", "optuna"],
        metric: str,
        mode: Literal["min", "max"],
        config: Sequence[str],
    ) -> None:
        """Opens or creates a study; raises UserError if the folder holds a run or another sweep."""
        if (folder / "config.json").exists():
            raise UserError(f"{folder} is the directory of a run; set model_dir to another one.")
        self._folder, self._values, self._search = folder, dict(values), search
        self._metric, self._mode = metric, mode
        folder.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(folder / "optuna.journal"))
        storage = optuna.storages.JournalStorage(backend)
        self._study = optuna.create_study(
            storage=storage, study_name="sweep", direction=f"{mode}imize", load_if_exists=True
        )
        lines = [f"{path} in {each}" for path, each in values.items()]
        lines += [f"{search}, {mode} of {metric}", *config]
        if "sweep" not in self._study.user_attrs:
            self._study.set_user_attr("sweep", lines)
        elif differ := sorted({*self._study.user_attrs["sweep"]} ^ {*lines}):
            raise UserError(
                f"{folder} contains a different sweep. These differ: {'; '.join(differ[:4])}. Pass "
                "the same settings and --sweep options to continue that sweep, or set model_dir to "
                "another directory."
            )
        for row in grid(values) if search == "grid" else ():
            self._study.enqueue_trial(row, skip_if_exists=True)

    def _begun(self) -> list[optuna.trial.FrozenTrial]:
        """Returns the trials that have all values; a trial that was killed early may lack some."""
        trials = self._study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.params.keys() == self._values.keys()]

    def trials(self, number: int) -> Iterator[tuple[int, dict[str, str]]]:
        """Yields (index, values) of unfinished trials, then of new ones up to `number` in total."""
        begun = self._begun()
        for trial in begun:
            if not trial.state.is_finished():
                yield trial.number, self._texts(trial)
        for index in range(len(begun), number):
            # With a seed per trial, a resumed study draws the same values as an uninterrupted one.
            seed = int(np.random.SeedSequence([0, index]).generate_state(1)[0])
            samplers = optuna.samplers
            kind = samplers.RandomSampler if self._search == "random" else samplers.TPESampler
            self._study.sampler = kind(seed=seed)
            asked = self._study.ask(self._values)
            yield asked.number, self._texts(asked)

    def _texts(self, trial: Any) -> dict[str, str]:
        return {path: as_text(trial.params[path]) for path in self._values}

    def tell(self, trial: int, score: float | None) -> None:
        """Records the score of a trial (None if it failed) and writes the results."""
        self._study.tell(trial, score)
        self.write_results()

    def results(self) -> list[tuple[str, ...]]:
        """Returns a table of strings: a header and a row for each trial, the best trial first."""
        sign = 1 if self._mode == "min" else -1
        rows = [("run", *self._values, self._metric, "state")]
        for trial in sorted(self._begun(), key=lambda t: (t.value is None, sign * (t.value or 0))):
            score = "" if trial.value is None else repr(trial.value)
            state = _STATES[trial.state.name]
            rows.append((f"{trial.number:03}", *self._texts(trial).values(), score, state))
        return rows

    def write_results(self) -> None:
        """Writes `results.csv`, and Optuna's plot of scores against settings as `results.png`."""
        from matplotlib import pyplot

        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.results())
        write_atomically(self._folder / TABLE, text.getvalue())
        with warnings.catch_warnings(), pyplot.rc_context():
            warnings.simplefilter("ignore")
            plot = optuna.visualization.matplotlib.plot_slice
            axes = plot(self._study, target_name=self._metric)
            write_figure(np.ravel(axes)[0].figure, self._folder / "results.png")
            pyplot.close()
