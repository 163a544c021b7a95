"""The statistics computed by kernels on a GPU. Imported without Triton; launched only with it."""
