"""Which encyclopaedia articles no model of ours is trained on: a rule that needs no list.

Training leaves them out and the long tasks (`long_texts`) are made of them, so both ask here.
"""

import hashlib

EVERY = 50  # one title in so many


def held_out(title: str) -> bool:
    """Whether an article is kept for tests, from a hash of its title."""
    return int(hashlib.sha256(title.encode()).hexdigest(), 16) % EVERY == 0
