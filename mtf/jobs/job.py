"""The base class of jobs whose work is in the module `run` beside their settings."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Generic, TypeVar

from mtf.config import as_checked
from mtf.jobs.description import Description

Result = TypeVar("Result")


class Job(Generic[Result]):
    """A job: frozen settings, with the functions of their module `run` as methods."""

    def run(self) -> Result:
        """Runs the job and returns its result.

        Raises UserError, without writing anything, if the input cannot be used.
        """
        result: Result = self._work().run(as_checked(self))
        return result

    def describe(self) -> Description:
        """Returns the settings and the results of checks, without running the job.

        Raises UserError if a field has the wrong type; the description contains all other problems.
        """
        description: Description = self._work().describe(as_checked(self))
        return description

    def _work(self) -> ModuleType:
        """Imports the module, which may import JAX."""
        return importlib.import_module(type(self).__module__.replace(".settings", ".run"))
