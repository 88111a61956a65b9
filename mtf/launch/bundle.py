"""What mtf.launch copies to each host: the code as it is here, the command, and how to run it."""

from __future__ import annotations

import dataclasses
import io
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import mtf
from mtf.errors import UserError

# More than this is data, not code.
_MAX_BYTES = 100_000_000
_PACKAGES = ("mtf", "recipes", "conversion")

# Replaces the copy of an earlier start. Files that a run has written among the code stay.
UNPACK = (
    'mkdir -p -- "$1" && cd -- "$1" && '
    "if [ -e job.sh ]; then sh job.sh idle; fi && "
    "if [ -e files ]; then xargs -0 rm -f -- <files; fi && "
    "tar --no-same-owner -xzf -"
)


@dataclasses.dataclass(frozen=True)
class Code:
    """Files to copy: their names on the host, and where they are here.

    Attributes:
      files: name on the host, such as code/my.py → file.
      folder: directory on the host in which the command runs.
      summary: what the code is, for the user.
    """

    files: Mapping[str, Path]
    folder: str
    summary: str


@dataclasses.dataclass(frozen=True)
class Job:
    """A run on several hosts, as `job.sh` needs it.

    Attributes:
      name: name of the run in its directory, session and messages.
      arguments: those of mtf.run.
      python: Python on the hosts; None for that of `requirements`.
      variables: environment variables.
      place: "given", or "tpu" if the processes find each other by Cloud TPU's metadata.
      requirements: packages to install; None for none.
      code: what to copy; None to run in the current directory, which all hosts have.
    """

    name: str
    arguments: Sequence[str]
    python: str | None
    variables: Mapping[str, str]
    place: str
    requirements: Sequence[str] | None
    code: Code | None

    def texts(self) -> dict[str, str]:
        """Returns the generated files: name → text."""
        job = Path(__file__).with_name("job.sh").read_text(encoding="utf-8")
        texts = {"job.sh": job, "command.sh": self._command()}
        if self.requirements is not None:
            texts["requirements.txt"] = "".join(f"{line}\n" for line in self.requirements)
        if self.code is not None:
            texts["files"] = "".join(f"{name}\0" for name in self.code.files)
        return texts

    def _command(self) -> str:
        values = {
            "name": self.name,
            "place": self.place,
            "python_version": f"{sys.version_info.major}.{sys.version_info.minor}",
        }
        lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
        exports = [f"export {name}={shlex.quote(text)}" for name, text in self.variables.items()]
        if self.code is not None:
            exports.append(
                'export PYTHONPATH="$here/code:$here/mtf-jax${PYTHONPATH:+:$PYTHONPATH}"'
            )
        folder = os.getcwd() if self.code is None else self.code.folder
        python = '"$here/env/bin/python"' if self.python is None else shlex.quote(self.python)
        return (
            "# The values of this run, for job.sh.\n"
            + "".join(f"{line}\n" for line in lines)
            + "\nrun_command() {\n"
            + "".join(f"    {line}\n" for line in exports)
            + f"    cd {shlex.quote(folder)} || exit 1\n"
            + f"    exec {python} -m mtf.run {shlex.join(self.arguments)}\n"
            + "}\n"
        )

    def write(self, file: Path) -> None:
        """Writes everything to a tar.gz file."""
        with tarfile.open(file, "w:gz", compresslevel=6) as archive:
            for name, text in self.texts().items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(text.encode()), 0o644
                archive.addfile(entry, io.BytesIO(text.encode()))
            for name, path in ({} if self.code is None else self.code.files).items():
                archive.add(path, name, recursive=False)

    def shown(self) -> str:
        """Returns the generated files as text, for a dry run."""
        shown = [f"# {name}\n{text}" for name, text in self.texts().items() if name != "files"]
        if self.code is not None:
            shown.append(f"# {self.code.summary}\n")
        return "\n".join(shown)


def find_code() -> Code:
    """Returns the checkout of the current directory, with changes and new files.

    Ignored files are left out. If mtf is not in the checkout, its packages are added.

    Raises:
      UserError: the current directory is not in a checkout, or there is too much to copy.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None:
        raise UserError(
            f"{os.getcwd()} is in no git checkout, so the code to copy is unknown. Run this in "
            "your checkout (git init makes one). If all hosts have this directory, pass --no-copy."
        )
    root = Path(top)
    names = _git("-C", top, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or ""
    found = {f"code/{name}": root / name for name in names.split("\0") if name}
    files = {name: path for name, path in found.items() if path.is_symlink() or path.is_file()}
    own = Path(mtf.__file__).resolve().parents[1]
    if "code/mtf/__init__.py" not in files:
        for package in _PACKAGES:
            for path in sorted((own / package).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    files[f"mtf-jax/{path.relative_to(own).as_posix()}"] = path
    _check_size(files)
    revision = (_git("rev-parse", "--short", "HEAD") or "no commit").strip()
    changed = bool(_git("status", "--porcelain"))
    state = f"{revision}, with changes" if changed else revision
    folder = PurePosixPath("code") / Path.cwd().resolve().relative_to(root.resolve()).as_posix()
    return Code(files, str(folder), f"code: {len(files)} files of {root} at {state}")


def _check_size(files: Mapping[str, Path]) -> None:
    sizes = {name: path.lstat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total > _MAX_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        shown = ", ".join(
            f"{name.partition('/')[2]} ({sizes[name] / 1e6:,.0f} MB)" for name in largest
        )
        raise UserError(
            f"The code to copy has {total / 1e6:,.0f} MB; expected at most "
            f"{_MAX_BYTES / 1e6:,.0f} MB. The largest files are {shown}. Add data and runs to "
            ".gitignore, and put data where all hosts read it."
        )


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.removesuffix("\n") if done.returncode == 0 else None
