"""Uploads an exported model to the Hugging Face hub (`python -m mtf.convert --push-to-hub`)."""

from __future__ import annotations

import importlib.util
import re
import shlex

from mtf.errors import RunError, UserError
from mtf.storage import AnyPath, StorePath

_REPO = re.compile(r"(?:[\w.-]+/)?[\w.-]{1,96}", re.ASCII)


def check_repo(repo: str, out_dir: AnyPath) -> None:
    """Raises a UserError if the name is not one of the hub, or the directory is in a store."""
    if not _REPO.fullmatch(repo) or any(x in repo for x in ("--", "..")):
        raise UserError(f"--push-to-hub {repo}: expected the name of a repository, USER/NAME.")
    if isinstance(out_dir, StorePath):
        raise UserError(f"--push-to-hub: {out_dir} is in a store; expected a local OUT_DIR.")


def push(directory: AnyPath, repo: str) -> None:
    """Uploads a directory; without a token, prints the command that does it.

    The token is that of `hf auth login` or $HF_TOKEN. Raises a RunError if the upload fails.
    """
    command = f"hf upload {shlex.join([repo, str(directory), '.'])}"
    if not importlib.util.find_spec("huggingface_hub"):
        print(
            f"huggingface_hub is not installed. To upload the model, run:\n"
            f"  pip install huggingface_hub; hf auth login\n  {command}"
        )
        return
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        print(
            f"There is no token of the Hugging Face hub. To upload the model, run:\n"
            f"  hf auth login\n  {command}"
        )
        return
    try:
        huggingface_hub.create_repo(repo, exist_ok=True)
        done = huggingface_hub.upload_folder(
            repo_id=repo, folder_path=str(directory), commit_message="Upload the model"
        )
    except Exception as error:  # Errors of the network are of several libraries.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(
            f"{directory} is complete, but it could not be uploaded to {repo}: {reason}. To try "
            f"again, run: {command}"
        ) from error
    print(f"Uploaded to {getattr(done, 'commit_url', done)}")
