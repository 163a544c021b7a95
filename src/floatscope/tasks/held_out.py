"""Choose by a hash the encyclopaedia articles on which no embedded model is trained.

Training leaves these articles out, and the long tasks (`long_texts`) use them.
"""

import hashlib

EVERY = 50  # one title in this number is held out


def held_out(title: str) -> bool:
    """Return whether an article is held out for tests, by a hash of its title."""
    return int(hashlib.sha256(title.encode()).hexdigest(), 16) % EVERY == 0
