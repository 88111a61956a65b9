"""Tasks and mixtures of prompted datasets: T0's and mT0's. `mixtures` is where to enter."""
