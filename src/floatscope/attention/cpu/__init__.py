"""The statistics in blocks of queries, on any device."""
