"""What bench/scale.py, bench/shard_bytes.py and bench/cost.py are made of."""
