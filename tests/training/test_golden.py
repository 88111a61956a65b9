"""Forty steps of larger runs of T5X on packed text, which the repository does not contain.

tests/golden compares with recorded runs of T5X, which it does contain.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import GOLDEN
from tests.training import golden

# Some of T5X's losses, so that a change of the reference files would be noticed.
FIRST_LOSSES = {
    "const_legacy": [1210.0469970703125, 1209.418701171875, 992.8407592773438],
    "factored_legacy": [1210.0469970703125, 1209.314453125, 992.408447265625],
}


@pytest.mark.slow
@pytest.mark.skipif(not GOLDEN.is_dir(), reason="tests/golden has recorded runs; these are larger")
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("variant", list(FIRST_LOSSES))
def test_forty_steps_are_those_of_t5x(variant: str, scan_layers: bool) -> None:
    trainer = golden.make_trainer(variant, scan_layers=scan_layers)
    state = golden.start(variant, trainer)
    losses = []
    for batch in golden.batches(variant):
        state, metrics = trainer.train_step(state, batch)
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses[:3], FIRST_LOSSES[variant], rtol=1e-5)
    np.testing.assert_allclose(losses, golden.losses(variant), rtol=1e-5)

    ours, theirs = golden.flat(state), golden.final(variant)
    assert ours.keys() == theirs.keys()
    assert ours["state/step"] == theirs["state/step"] == 40
    factored = [name for name in theirs if name.endswith("v_row") and theirs[name].size > 1]
    assert bool(factored) == (variant == "factored_legacy")
    for name, expected in theirs.items():
        # Second moments have the scale of squared gradients, so the largest is the measure.
        scale = 1.0 if name.startswith("target") else np.abs(expected).max()
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-4 * scale, err_msg=name)
