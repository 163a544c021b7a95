"""Decide by a hash which encyclopaedia articles no embedded model is trained on.

Training leaves these articles out, and the long tasks (`long_texts`) are made of them.
"""

import hashlib

EVERY = 50  # one title in so many


def held_out(title: str) -> bool:
    """Return whether an article is held out for tests, by a hash of its title."""
    return int(hashlib.sha256(title.encode()).hexdigest(), 16) % EVERY == 0
