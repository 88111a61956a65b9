"""Downloads, reads and renders promptsource's templates."""
