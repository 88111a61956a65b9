"""Uploads an exported model to the Hugging Face hub (`python -m mtf.convert --push-to-hub`)."""

from __future__ import annotations

import re
import shlex

from mtf.base.errors import RunError, UserError
from mtf.base.writing import JOB_FILE
from mtf.storage import AnyPath, is_remote

_REPO = re.compile(r"(?:[\w.-]+/)?[\w.-]{1,96}", re.ASCII)


def check_repo(repo: str, out_dir: AnyPath) -> None:
    """Raises UserError if the repository's name is invalid or the directory is remote."""
    if not _REPO.fullmatch(repo):
        raise UserError(f"--push-to-hub {repo}: expected the name of a repository, USER/NAME.")
    if is_remote(out_dir):
        raise UserError(f"--push-to-hub: {out_dir} is remote; expected a local OUT_DIR.")


def push(directory: AnyPath, repo: str) -> None:
    """Uploads a directory, or prints the command to do so if huggingface_hub or a token is missing.

    JOB_FILE contains paths of this machine, so it is not uploaded. The token comes from
    `hf auth login` or $HF_TOKEN. Raises RunError if the upload fails.
    """
    command = f"hf upload {shlex.join([repo, str(directory), '.', '--exclude', JOB_FILE])}"
    try:
        import huggingface_hub

        token = huggingface_hub.get_token()
    except ImportError:
        token = None
    if token is None:
        print(
            "huggingface_hub or a token for the hub is missing. To upload the model, run:\n"
            f"  pip install huggingface_hub; hf auth login\n  {command}"
        )
        return
    try:
        huggingface_hub.create_repo(repo, exist_ok=True)
        done = huggingface_hub.upload_folder(
            repo_id=repo,
            folder_path=str(directory),
            commit_message="Upload the model",
            ignore_patterns=JOB_FILE,
        )
    except Exception as error:  # Each network library has its own exceptions.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(
            f"{directory} is complete, but it could not be uploaded to {repo}: {reason}. To try "
            f"again, run: {command}"
        ) from error
    print(f"Uploaded to {getattr(done, 'commit_url', done)}")
