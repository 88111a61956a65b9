"""Low-rank adapters (LoRA, Hu et al. 2021), whose parameters are stored next to the kernels.

The adapter of a `kernel`, (in, out), has the parameters `lora_a`, (in, rank), `lora_b`,
(rank, out), and the scalar `lora_scale`. The adapted kernel is kernel + lora_scale * lora_a @
lora_b. `lora_scale` is alpha / rank and is never trained. It is stored so that the adapters in a
checkpoint can be applied without their config.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp

from mtf.base.errors import UserError, did_you_mean
from mtf.models.settings import LoraConfig
from mtf.models.trees import flat_names, nested
from mtf.models.types import Params

NAMES = ("lora_a", "lora_b", "lora_scale")
_LAYER = re.compile(r"/layers(_\d+)?/")


def with_adapters(tree: Params, config: LoraConfig) -> Params:
    """Returns a network's tree of `Parameter`s with the parameters of adapters added.

    Raises UserError if a pattern of `config.targets` matches no kernel of a layer.
    """
    flat = flat_names(tree)
    paths = [path for path in flat if _LAYER.search(path) and path.endswith("/kernel")]
    names = {path: _LAYER.sub("/", path).removesuffix("/kernel") for path in paths}
    seen = dict.fromkeys(names.values())
    for pattern in config.targets:
        if not any(re.fullmatch(pattern, name) for name in seen):
            raise UserError(
                f"lora.targets: no kernel of a layer matches {pattern!r}; expected patterns that "
                f"match the full name of a kernel, such as {', '.join(seen)}."
                + did_you_mean(pattern, [*seen, *{f".*/{name.split('/')[-1]}" for name in seen}])
            )
    for path, name in names.items():
        if any(re.fullmatch(pattern, name) for pattern in config.targets):
            adapter = _adapter(flat[path], config).items()
            flat |= {f"{path.removesuffix('kernel')}{each}": value for each, value in adapter}
    return nested(flat)


def _adapter(kernel: Any, config: LoraConfig) -> Params:
    (rows, columns), (row_axis, column_axis) = kernel.shape, kernel.axes

    def uniform(rng: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.uniform(rng, shape, dtype, -(rows**-0.5), rows**-0.5)

    make, initializers = type(kernel), jax.nn.initializers
    return {
        "lora_a": make((rows, config.rank), (row_axis, "lora_rank"), uniform),
        "lora_b": make((config.rank, columns), ("lora_rank", column_axis), initializers.zeros),
        "lora_scale": make((), (), initializers.constant(config.alpha / config.rank)),
    }


def merged(params: Params) -> Params:
    """Returns the parameters with all adapters merged into their kernels; layers may be stacked."""
    if "lora_a" not in params:
        return {
            name: merged(value) if isinstance(value, dict) else value
            for name, value in params.items()
        }
    scale = params["lora_scale"][..., None, None]
    kernel = params["kernel"] + scale * jnp.matmul(
        params["lora_a"], params["lora_b"], precision="highest"
    )
    rest = {name: value for name, value in params.items() if name not in NAMES}
    return {**rest, "kernel": kernel}
