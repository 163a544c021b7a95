"""The statistics computed in blocks of queries, on any device."""
