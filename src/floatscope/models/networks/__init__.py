"""Network classes of Floatscope, for architectures whose transformers class lacks what a Model needs."""
