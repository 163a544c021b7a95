"""Tables of BENCHMARKS.md that are long to write; `bench/tables.py` knows all of them."""
