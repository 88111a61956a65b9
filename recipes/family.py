"""Makes the recipes of a family, which differ only in a size or a mixture, from one function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

_Which = TypeVar("_Which")
_Arguments = ParamSpec("_Arguments")
_Job = TypeVar("_Job")


def member(
    family: Callable[Concatenate[_Which, _Arguments], _Job], which: _Which, name: str, model: str
) -> Callable[_Arguments, _Job]:
    """Returns the recipe `name`, which calls `family` with `which` as the first argument.

    Its docstring is that of `family`, with `name` in place of NAME and `model` in place of MODEL.
    """

    @functools.wraps(family)
    def recipe(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Job:
        return family(which, *args, **kwargs)

    signature = inspect.signature(family)
    _, *others = signature.parameters.values()
    vars(recipe)["__signature__"] = signature.replace(parameters=others)
    recipe.__name__ = recipe.__qualname__ = name
    recipe.__doc__ = (family.__doc__ or "").replace("NAME", name).replace("MODEL", model)
    return recipe
