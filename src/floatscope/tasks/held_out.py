"""Decide whether an encyclopaedia article is held out from training, by a hash of the article's title.

The training of the embedded models leaves out the articles that are held out; the tasks with long answers
(`long_texts`) use these articles.
"""

import hashlib

EVERY = 50  # one title in this number is held out


def held_out(title: str) -> bool:
    """Return whether the article with this title is held out for tests (one article in `EVERY`)."""
    return int(hashlib.sha256(title.encode()).hexdigest(), 16) % EVERY == 0
