"""Prompts: promptsource's templates read as data (`templates`), and applied to rows (`render`)."""
