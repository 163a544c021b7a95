"""Decide, by a hash of its title, whether an encyclopaedia article is held out from training.

The training of the embedded models leaves these articles out; the long tasks (`long_texts`) use them.
"""

import hashlib

EVERY = 50  # one title in this number is held out


def held_out(title: str) -> bool:
    """Return whether the article with this title is held out for tests (one article in `EVERY`)."""
    return int(hashlib.sha256(title.encode()).hexdigest(), 16) % EVERY == 0
