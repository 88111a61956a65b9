"""`python -m mtf plan`: compiles a recipe for devices that need not be available."""
