"""`python -m mtf.doctor`: describes the installation and the machine, and tries to train."""
