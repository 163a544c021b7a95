"""Experiments, one file each.

An experiment runs the model with a change, such as removed heads or replaced residuals, on each question in
turn; a measure only reads a recorded trace.
"""
