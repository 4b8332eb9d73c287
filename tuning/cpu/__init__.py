"""What a scheduled kernel costs on a CPU: its loops, their instructions, caches and memory."""
