"""Copies a remote checkpoint to this machine (`python -m mtf fetch CHECKPOINT`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from conversion import open_checkpoint
from conversion.checksums import checking
from conversion.formats import find_prefix, format_of_prefix
from conversion.huggingface_reader import known_files
from mtf.base import signals
from mtf.base.downloads import copied
from mtf.base.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.builders.checkpoint import RELEASED_STEPS, start
from mtf.cli.command import exit_status, new_parser
from mtf.storage import AnyPath, as_path, check_bucket, is_listable, is_remote
from mtf.storage.copies import cache_directory

_EPILOG = """\
examples:
  python -m mtf fetch t5_1_1_lm100k_small
  python -m mtf fetch gs://my-bucket/runs/t0 --step 1112200
  python -m mtf fetch \\
      gs://t5-data/pretrained_models/mt5/small/model.ckpt-1000000
  python -m mtf fetch https://huggingface.co/google-t5/t5-small/resolve/main

The copy is stored in MTF_CACHE (default: ~/.cache/mtf). Runs, mtf.load and mtf.convert read it
instead of the remote checkpoint. If the command is stopped, run it again to continue.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = new_parser("fetch", "Copy a remote checkpoint to this machine.", _EPILOG)
    what = "name of a released checkpoint, such as mt5_base, or remote path of a checkpoint or run"
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=what)
    step = "step of the checkpoint, if the path is a run (default: the latest)"
    parser.add_argument("--step", type=int, metavar="N", help=step)
    options = parser.parse_args(argv)
    signals.hint("run the same command again to continue")
    return exit_status(lambda: _fetch(options), only_shows=False)


@conversion_as_user_errors()
def _fetch(options: argparse.Namespace) -> None:
    path = _chosen(_address(options.checkpoint), options.step)
    print(f"Copying {path} to {cache_directory()}", flush=True)
    copy = _copy(path)
    with checking(copy):
        layout = open_checkpoint(copy).layout
    files = copy.rglob("*") if copy.is_dir() else copy.parent.glob(f"{copy.name}.*")
    size = sum(file.stat().st_size for file in files if file.is_file())
    print(f"{copy}: {layout} checkpoint, {size:,} bytes. It is now read in place of {path}.")


def _address(name: str) -> AnyPath:
    """Returns the remote path of a released checkpoint, or `name` if it is a remote path itself."""
    path = as_path(start(name).path if name in RELEASED_STEPS else name)
    if not is_remote(path):
        known = f" The released ones are {', '.join(RELEASED_STEPS)}."
        raise UserError(
            f"{name} is neither a gs://, s3:// or https:// path nor a released checkpoint."
            f"{did_you_mean(name, RELEASED_STEPS) or known}"
        )
    return path


def _chosen(path: AnyPath, step: int | None) -> AnyPath:
    """Returns `path` if it is a checkpoint; if it is a directory, the checkpoint of `step` in it.

    If `path` is a directory of checkpoints and `step` is None, the latest checkpoint is returned.
    """
    prefix = find_prefix(path, step)
    if prefix is not None:
        return (path.parent if format_of_prefix(str(path)) else path) / prefix.name
    if not is_listable(path):
        return path
    check_bucket(path)
    found = open_checkpoint(path, step).path
    return found if is_remote(found) else path  # An earlier copy may be out of date.


def _copy(path: AnyPath) -> Path:
    """Copies a checkpoint and its run's config, which names the vocabulary. Returns the copy."""
    kind = format_of_prefix(str(path))
    if kind is not None and kind.files:
        return [copied(file, "fetch") for file in kind.files(path)][-1].with_suffix("")
    if is_remote(path) and not is_listable(path):
        names = known_files(path)
        if "config.json" not in names:
            raise UserError(
                f"{path} has no config.json, and files cannot be listed over {path.protocol}://; "
                "expected a Hugging Face directory."
            )
        return copied(path, "fetch", names=names)
    folder = path.parent
    config = (folder.parent if folder.name == "checkpoints" else folder) / "config.json"
    if config.is_file():
        copied(config, "fetch")
    return copied(path, "fetch")
