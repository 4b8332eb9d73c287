"""What can be done with a folder of records: each operation is a file."""
