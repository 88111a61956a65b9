"""What tests share: made-up data, and how programs are compiled."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis
import pytest

from tests import made_up

# How long an example takes says more about the machine than about the code. Fifty find what a
# hundred do; `pytest --hypothesis-profile default` takes a hundred.
hypothesis.settings.register_profile("mtf", deadline=None, max_examples=50)
hypothesis.settings.load_profile("mtf")

# Compiling is most of what tests do, so it is done quickly, and once for all processes: pytest's
# own and those that tests start. Set before anything imports jax. XLA's optimization of what is
# compiled alone changes no promise; `XLA_FLAGS= pytest` tests what users compile, as CI does of
# the slow tests.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false",
)
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="mtf-compiled-")
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": _compiled.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@pytest.fixture(scope="session", autouse=True)
def _nothing_takes_long() -> None:
    """On a busy machine, no test sees that a command shows what it waits for."""
    from mtf.base import progress

    progress._SECONDS_UNTIL_SHOWN = 1_000_000


@pytest.fixture(scope="session", autouse=True)
def _verify_only_if_asked() -> None:
    """Tests that export for another purpose do not compare the logits."""
    from mtf.jobs.convert import export

    export.VERIFY_BY_DEFAULT = False


@pytest.fixture
def t5_model() -> Path:
    """A SentencePiece model without sentinels, as T5's."""
    return made_up.t5_model()


@pytest.fixture
def mt5_model() -> Path:
    """A SentencePiece model with bytes and a hundred sentinels, as mT5's."""
    return made_up.mt5_model()


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of templates of our own under the names of promptsource's."""
    from tests.storage import prompted_hub

    return prompted_hub.write_sdist(tmp_path_factory.mktemp("promptsource"))


@pytest.fixture
def prompts(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`archive`, which `mtf` takes for promptsource's templates."""
    from tests.storage import prompted_hub

    prompted_hub.accept(archive, monkeypatch)
    monkeypatch.setenv("MTF_PROMPTS", str(archive))
    return archive


@pytest.fixture(scope="session")
def datasets_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror of some of T0's datasets, with records that are made up."""
    from tests.storage import prompted_hub

    keys = (
        "piqa rotten_tomatoes social_i_qa super_glue/cb super_glue/copa super_glue/rte trec "
        "winogrande/winogrande_xl xsum"
    )
    return prompted_hub.write_mirror(tmp_path_factory.mktemp("mirror"), keys, num_rows=60)


def with_devices(number: int) -> str:
    """XLA_FLAGS of a process that sees so many CPU devices, otherwise those of this one."""
    return f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={number}".strip()
