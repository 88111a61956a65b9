"""`python -m mtf.fetch CHECKPOINT`: copies a checkpoint in a store to this machine."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtf.command import exit_status, new_parser
from mtf.copies import cache_directory
from mtf.downloads import copied
from mtf.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.storage import StorePath, as_path

if TYPE_CHECKING:
    from pathlib import Path

_EPILOG = """\
examples:
  python -m mtf.fetch t5_1_1_lm100k_small
  python -m mtf.fetch gs://my-bucket/runs/t0 --step 1112200
  python -m mtf.fetch gs://t5-data/pretrained_models/mt5/small/model.ckpt-1000000
  python -m mtf.fetch https://huggingface.co/google-t5/t5-small/resolve/main

The copy is below MTF_CACHE (default: ~/.cache/mtf). A run, mtf.load and mtf.convert read it instead
of the checkpoint in the store. If the command is stopped, run it again: it continues.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    options = _parser().parse_args(argv)
    signals.hint("run the same command again to continue")
    return exit_status(lambda: _fetch(options), only_shows=False)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("fetch", "Copy a checkpoint in a store to this machine.", _EPILOG)
    what = "name of a released checkpoint, such as mt5_base, or address of a checkpoint or a run"
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=what)
    step = "step of the checkpoint of a run (default: the latest)"
    parser.add_argument("--step", type=int, metavar="N", help=step)
    return parser


@conversion_as_user_errors()
def _fetch(options: argparse.Namespace) -> None:
    from conversion import open_checkpoint

    path = _chosen(_address(options.checkpoint), options.step)
    print(f"Copying {path} to {cache_directory()}", flush=True)
    copy = _copy(path)
    layout = open_checkpoint(copy).layout
    files = copy.rglob("*") if copy.is_dir() else copy.parent.glob(f"{copy.name}.*")
    size = sum(file.stat().st_size for file in files if file.is_file())
    print(f"{copy}: {layout} checkpoint, {size:,} bytes. {path} is now read from there.")


def _address(name: str) -> StorePath:
    """Returns the address of a released checkpoint, or an address as it is."""
    from mtf.builders.checkpoint import RELEASED_STEPS, released

    path = as_path(released(name).path if name in RELEASED_STEPS else name)
    if not isinstance(path, StorePath):
        raise UserError(
            f"{name} is neither an address (gs://, s3://, https://) nor a released checkpoint; "
            f"expected one of {', '.join(RELEASED_STEPS)}.{did_you_mean(name, RELEASED_STEPS)}"
        )
    return path


def _chosen(path: StorePath, step: int | None) -> StorePath:
    """Returns the checkpoint itself, of a directory with several checkpoints."""
    from conversion import list_checkpoints
    from conversion.mesh_tensorflow import find_prefix, is_prefix

    prefix = find_prefix(path, step)
    if prefix is not None:
        return path.parent / prefix.name if is_prefix(str(path)) else path / prefix.name
    if not path.is_listable:
        return path
    if not path.is_dir():
        if not path.has_bucket():
            raise UserError(f"{path}: there is no bucket {path.bucket!r}.")
        raise UserError(f"{path} does not exist; expected a checkpoint, or a directory of them.")
    steps = dict(list_checkpoints(path))
    if not steps:
        if step is not None:
            raise UserError(f"{path} has no checkpoint_STEP directories; leave out --step.")
        return path
    if step is not None and step not in steps:
        raise UserError(f"{path} has no checkpoint of step {step}; it has {sorted(steps)}.")
    chosen = steps[max(steps) if step is None else step]
    assert isinstance(chosen, StorePath)
    return chosen


def _copy(path: StorePath) -> Path:
    """Copies a checkpoint, and the config of its run, which names the vocabulary."""
    from conversion.mesh_tensorflow import is_prefix
    from conversion.tensor_bundle import bundle_files

    if is_prefix(str(path)):
        return [copied(file, "fetch") for file in bundle_files(path)][-1].with_suffix("")
    if not path.is_listable:
        from conversion.huggingface_reader import known_files

        names = known_files(path)
        if "config.json" not in names:
            raise UserError(
                f"{path} has no config.json, and files cannot be listed over {path.scheme}://; "
                "expected a Hugging Face directory."
            )
        return copied(path, "fetch", names=names)
    folder = path.parent
    config = (folder.parent if folder.name == "checkpoints" else folder) / "config.json"
    if config.is_file():
        copied(config, "fetch")
    return copied(path, "fetch")


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
