"""What a scheduled kernel costs on a GPU, by a roofline, and how candidates are built for one."""
