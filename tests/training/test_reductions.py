import jax
import numpy as np
import pytest

from mtf.training.reductions import mean_square


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("shape", [(4096, 20_000), (300, 20_000), (20_000, 3), (4, 6)])
def test_mean_square_is_that_of_float64(shape, dims):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = np.mean(np.square(x.astype(np.float64)), axis=dims)
    np.testing.assert_allclose(jax.jit(mean_square, static_argnums=1)(x, dims), expected, rtol=1e-5)
