"""Which extras are installed, and the pip command for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from mtf.doctor.report import Section
from mtf.errors import UserError
from mtf.requirements import PROJECT, installed_version, needs, own_extras

TORCH_ON_CPU = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


def extras() -> Section:
    """Returns each extra of mtf: installed, or what is missing and the command that installs it."""
    try:
        names = sorted(own_extras().keys() - {""})
    except UserError:  # `versions` reports it.
        return Section("extras", [("unknown", "")])
    base = {str(needed) for needed in needs(PROJECT, frozenset())}
    found = {
        name: [each for each in needs(PROJECT, frozenset([name])) if str(each) not in base]
        for name in names
    }
    return Section("extras", rows(found, has_gpu=Path("/dev/nvidiactl").exists()))


def rows(required: Mapping[str, Sequence[Requirement]], *, has_gpu: bool) -> list[tuple[str, str]]:
    """Returns (extra, whether it is installed) for extras and what they require.

    Where there is no GPU, the command for torch names the builds for CPUs; PyPI's need gigabytes.
    """
    found = []
    for extra, needed in required.items():
        missing = list(dict.fromkeys(_missing(needed, required)))
        text = "installed"
        if missing:
            command = f"pip install '{PROJECT}[{extra}]'"
            if not has_gpu and any(each.partition(" ")[0] == "torch" for each in missing):
                command = f"{TORCH_ON_CPU} && {command}"
            text = f"missing {', '.join(missing)}: {command}"
        found.append((extra, text))
    return found


def _missing(
    needed: Sequence[Requirement], own: Mapping[str, Sequence[Requirement]]
) -> Iterator[str]:
    """Yields what is not installed, or not in a supported version."""
    for each in needed:
        if each.name == PROJECT:
            for extra in each.extras:
                yield from _missing(own[extra], own)
            continue
        version = installed_version(each)
        if version is None:
            yield each.name
        elif not each.specifier.contains(version, prereleases=True):
            yield f"{each.name} {each.specifier} (here: {version})"
        elif each.extras:
            base = {str(other) for other in needs(each.name, frozenset())}
            more = needs(each.name, frozenset(each.extras))
            yield from _missing([other for other in more if str(other) not in base], own)
