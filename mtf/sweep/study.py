"""A sweep whose values Optuna proposes from the results of the runs before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import fiddle as fdl
import numpy as np

from mtf.config import apply_overrides
from mtf.errors import UserError
from mtf.extras import import_extra
from mtf.storage import as_path
from mtf.sweep import results
from mtf.sweep.plan import write_plan
from mtf.sweep.values import Axis, Interval, as_axes

if TYPE_CHECKING:
    import optuna

DATABASE = "optuna.db"
# Optuna's states of a trial.
_STATES = {"COMPLETE": "finished", "FAIL": "failed", "RUNNING": "stopped"}


class Trial(NamedTuple):
    """A run that Optuna proposes.

    Attributes:
      name: the trial's number in the study with at least three digits, and the name of the
        run's directory below that of the sweep.
      values: path → value, as text, of the swept settings.
      config: the config with these values and with the run's directory.
    """

    name: str
    values: dict[str, str]
    config: fdl.Config


class Study:
    """Optuna's tree-structured Parzen estimator (TPE, Bergstra et al., 2011) over some settings.

    The study is stored in `optuna.db` in the directory of the sweep; a study that was killed
    continues with the trial that was running. With the same scores, it proposes the same values,
    whether it was killed or not.

    Args:
      config: the config of a job, which is not changed.
      values: path, as for `--set`, → its values: a list, or a text as for `--sweep`, such as
        "8,16", "0..0.5" or "log:1e-4..1e-1".
      directory: the directory of the sweep, on this machine.
      mode: whether smaller ("min") or larger ("max") scores are better.
      metric: the name of the score in the table and the plot.
      seed: seed of the sampler.

    Raises:
      UserError: Optuna is not installed, values are wrong, or the directory holds another sweep
        or a run.
    """

    def __init__(
        self,
        config: fdl.Config,
        values: Mapping[str, Sequence[Any] | str],
        directory: str,
        *,
        mode: Literal["min", "max"],
        metric: str = "score",
        seed: int = 0,
    ) -> None:
        optuna = import_extra("optuna", "A study", "optuna")
        self._optuna = optuna
        self._config, self._axes = config, as_axes(values)
        self._mode, self._metric, self._seed = mode, metric, seed
        folder = as_path(directory)
        if not isinstance(folder, Path):
            raise UserError(
                f"{directory} is in a store; Optuna's database needs a directory on this machine."
            )
        self.folder = folder
        searched = {
            axis.path: values[axis.path] if isinstance(axis.values, Interval) else [*axis.values]
            for axis in self._axes
        }
        search = {"sampler": "tpe", "seed": seed, "mode": mode, "metric": metric}
        write_plan(folder, config, {"search": {**search, "values": searched}})
        self._study = optuna.create_study(
            storage=f"sqlite:///{folder.resolve() / DATABASE}",
            study_name="sweep",
            direction="minimize" if mode == "min" else "maximize",
            load_if_exists=True,
        )

    @property
    def num_told(self) -> int:
        """The number of trials that have ended, also of those that failed."""
        return sum(trial.state.is_finished() for trial in self._study.get_trials(deepcopy=False))

    def trials(self, number: int) -> Iterator[Trial]:
        """Yields trials until `number` have been told, including those of earlier calls.

        Raises UserError if the last trial has not been told when the next one is asked for.
        """
        while (told := self.num_told) < number:
            trial = self.ask()
            yield trial
            if self.num_told == told:
                raise UserError(f"The study was not told the score of trial {trial.name}.")

    def ask(self) -> Trial:
        """Returns the trial that has not been told, or else a new one."""
        states, trials = self._optuna.trial.TrialState, self._study.get_trials(deepcopy=False)
        # With a seed of its own, a trial does not depend on what this process has drawn before.
        (seed,) = np.random.SeedSequence([self._seed, self.num_told]).generate_state(1)
        self._study.sampler = self._optuna.samplers.TPESampler(seed=int(seed))
        if running := [each for each in trials if each.state == states.RUNNING]:
            # Its values are those it was given; if it was killed before, they are drawn now.
            trial = self._optuna.trial.Trial(self._study, running[0]._trial_id)
        else:
            trial = self._study.ask()
        name = f"{trial.number:03}"
        values = {axis.path: _as_text(axis, _suggest(trial, axis)) for axis in self._axes}
        texts = [f"{path}={value}" for path, value in values.items()]
        config = apply_overrides(self._config, [*texts, f"model_dir={self.folder / name}"])
        return Trial(name, values, config)

    def tell(self, trial: Trial, score: float | None) -> None:
        """Ends a trial, and writes `results.csv` and `results.png`.

        A score that is None, NaN or infinite means that the run failed.
        """
        if score is None or not math.isfinite(score):
            self._study.tell(int(trial.name), state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(int(trial.name), score)
        results.write(self.folder, self.results(), self._metric)

    def results(self) -> list[results.Result]:
        """Returns the trials with their scores, the best first."""
        found = [
            results.Result(
                f"{trial.number:03}",
                {axis.path: _as_text(axis, trial.params[axis.path]) for axis in self._axes},
                _STATES[trial.state.name],
                trial.value,
            )
            for trial in self._study.get_trials(deepcopy=False)
            if len(trial.params) == len(self._axes)
        ]
        return results.ranked(found, self._mode)


def _suggest(trial: optuna.trial.Trial, axis: Axis) -> Any:
    """Returns the value that Optuna proposes."""
    each = axis.values
    if not isinstance(each, Interval):
        return trial.suggest_categorical(axis.path, each)
    if each.is_integer:
        return trial.suggest_int(axis.path, int(each.low), int(each.high), log=each.is_log)
    return trial.suggest_float(axis.path, each.low, each.high, log=each.is_log)


def _as_text(axis: Axis, value: Any) -> str:
    return axis.values.as_text(value) if isinstance(axis.values, Interval) else value
