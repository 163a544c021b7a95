"""Network classes for architectures whose transformers class lacks the interface that a Model needs."""
