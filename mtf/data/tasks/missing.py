"""Reports which tasks of a mixture are missing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mtf.base.errors import UserError

SETTING = "data.allow_missing_tasks"
_NUM_REASONS_SHOWN = 8
_NUM_NAMES_SHOWN = 5


def check_missing(
    name: str,
    num_tasks: int,
    missing: Mapping[str, str],
    allowed: bool,
    advice: str = "",
    option: str = f"set {SETTING}=True",
) -> None:
    """Raises UserError if all tasks are missing, or if any is missing and `allowed` is False.

    Args:
      name: name of the mixture.
      num_tasks: number of tasks in the mixture.
      missing: dict mapping the name of each missing task to the reason why it is missing.
      allowed: whether tasks may be missing.
      advice: sentences that explain how to make all tasks available.
      option: what allows missing tasks.
    """
    if not missing or (allowed and len(missing) < num_tasks):
        return
    if num_tasks == 1:
        [(task, reason)] = missing.items()
        raise UserError(f"data: {task}: {reason}. {advice}".strip(". "))
    lines = [f"data: {len(missing)} of the {num_tasks} tasks of {name} are missing:"]
    lines += [f"  {line}" for line in reasons(missing)]
    if num_tasks > len(missing):
        present = num_tasks - len(missing)
        advice += f" To use only {present} of {num_tasks} tasks, {option}."
    raise UserError("\n".join([*lines, advice.strip()]).rstrip())


def reasons(missing: Mapping[str, str]) -> list[str]:
    """Returns a line for each reason, which all datasets that are missing for it share."""
    groups: dict[str, dict[str, str]] = {}  # general reason → task → reason
    for task, reason in missing.items():
        groups.setdefault(_general(reason), {})[task] = reason
    lines = []
    for general, tasks in list(groups.items())[:_NUM_REASONS_SHOWN]:
        others = f" and {len(tasks) - 1} others" if len(tasks) > 1 else ""
        first, *more = dict.fromkeys(tasks.values())
        if more:
            names = [reason.partition(",")[0] for reason in (first, *more)]
            shown = ", ".join(names[:_NUM_NAMES_SHOWN]) + ", …" * (len(names) > _NUM_NAMES_SHOWN)
            first = f"{len(names)} datasets ({shown}) are missing: {general}"
        lines.append(f"{next(iter(tasks))}{others}: {first}")
    if hidden := list(groups.values())[_NUM_REASONS_SHOWN:]:
        lines.append(f"… and {sum(map(len, hidden))} more, for {len(hidden)} other reasons")
    return lines


def _general(reason: str) -> str:
    """Returns why a dataset is missing, with NAME and SPLIT in place of its own."""
    found = re.match(r"(\S+), split (\S+), is missing: ", reason)
    if found is None:
        return reason
    text = reason[found.end() :].replace(f"{found[1]}/{found[2]}", "NAME/SPLIT")
    return re.sub(r"(?<![\w/])[\w.-]+/[\w.-]*\w(?![\w/])", "NAME", text)  # its name on the hub


def describe_missing(name: str, num_tasks: int, missing: Mapping[str, str]) -> str:
    """Returns a line that states how many tasks have data and names the missing tasks."""
    shown = ", ".join(list(missing)[:_NUM_NAMES_SHOWN])
    more = len(missing) - _NUM_NAMES_SHOWN
    shown += f" and {more} more" if more > 0 else ""
    present = num_tasks - len(missing)
    return f"{name}: {present} of {num_tasks} tasks have data ({SETTING}=True); missing: {shown}"
