"""Several hosts write one cache: each writes a share of the shards."""

from __future__ import annotations

import dataclasses
from typing import Any

from mtf.cache import build
from mtf.cache.build import CacheProgress, Plan, Report, Share
from mtf.cache.writer import ShardWork
from mtf.cluster.meeting import Meeting
from mtf.cluster.places import Place
from mtf.environment import package_versions

_SECONDS_PER_REPORT = 0.5
# Seconds for which a host waits for the others, which look for the datasets first.
_PATIENCE = 1800.0


def meet(place: Place, plan: Plan) -> Meeting:
    """Meets the other hosts; raises UserError if they would write something else.

    Until then, no host has written anything.
    """
    info = dataclasses.asdict(build.cache_info(plan.settings))
    del info["vocabulary_path"]
    facts: dict[str, Any] = {
        "the cache": [f"{name} {value}" for name, value in info.items()],
        "the shards to write": [
            f"{_name(work)}: records {work.start} to {work.stop} ({work.task.fingerprint})"
            for works in plan.works.values()
            for work in works
        ],
        "the packages": [f"{name} {version}" for name, version in package_versions().items()],
    }
    return Meeting(place, facts, {}, patience=_PATIENCE)


def run_plan(plan: Plan, num_workers: int, report: Report, meeting: Meeting, place: Place) -> None:
    """Executes a plan together with the other hosts.

    The first host creates the folders, divides the shards, and completes tasks when all their
    shards are there. Raises UserError as `build.run_plan`.
    """
    if place.index == 0:

        def share(todo: list[ShardWork]) -> Share:
            meeting.announce([_name(work) for work in todo])
            others = [work for i, work in enumerate(todo) if i % place.count]
            return Share(todo[:: place.count], others)

        return build.run_plan(plan, num_workers, report, share)
    names = None
    while names is None:
        names = meeting.announced(_SECONDS_PER_REPORT)
        report(CacheProgress(0, 0, 0, waits=True))
    works = {_name(work): work for works in plan.works.values() for work in works}
    own = [works[name] for name in names[place.index :: place.count]]
    build.write_share(own, num_workers, report)


def _name(work: ShardWork) -> str:
    return f"{work.task.name}/{work.path.name}"
