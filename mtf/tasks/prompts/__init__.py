"""promptsource's templates: downloads, reads and renders them."""
