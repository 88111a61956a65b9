"""The base class of jobs whose work is in the module `run` beside their settings."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Generic, TypeVar

from mtf.base.progress import waiting
from mtf.config import as_checked
from mtf.jobs.description import Description

Result = TypeVar("Result")


class Job(Generic[Result]):
    """A job: frozen settings, and what the module `run` beside them does with them."""

    def run(self) -> Result:
        """Runs the job; raises UserError, without writing anything, if the input is not usable."""
        result: Result = self._work().run(as_checked(self))
        return result

    def describe(self) -> Description:
        """Returns the settings and the results of checks, including all problems; writes nothing.

        Raises UserError if a field has the wrong type.
        """
        description: Description = self._work().describe(as_checked(self))
        return description

    def _work(self) -> Any:
        with waiting("importing JAX", shown=sys.stderr.isatty()):  # A few jobs need only NumPy.
            return importlib.import_module(type(self).__module__.replace(".settings", ".run"))
