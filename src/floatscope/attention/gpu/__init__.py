"""Statistics computed by GPU kernels. The package imports without Triton; the kernels require it."""
