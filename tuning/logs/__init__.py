"""Folders of records: their files, and what can be done with them, each operation a file."""
