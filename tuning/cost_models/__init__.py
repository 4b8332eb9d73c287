"""What ranks candidates before they are built."""
