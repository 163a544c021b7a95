"""Networks of our own, where none of transformers' takes what a Model gives or keeps its parts in sight."""
