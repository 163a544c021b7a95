"""Statistics computed in blocks of queries, on any device."""
