"""What a scheduled kernel does on a GPU, and how long that takes by a roofline."""
