"""`python -m mtf.plan`: compiles a recipe for devices that are not here."""
