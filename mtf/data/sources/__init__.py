"""Reads records from text files, local mirrors of datasets and the Hugging Face hub."""
