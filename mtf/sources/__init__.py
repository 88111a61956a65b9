"""Rows from files, local mirrors of datasets and the Hugging Face hub."""
