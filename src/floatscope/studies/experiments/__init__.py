"""Experiments, one file each, which change a running model for one question after another.

A measure reads a trace. An experiment removes heads or replaces residuals, and runs the model again.
"""
