"""What bench/gpu.py runs, one file a question."""
