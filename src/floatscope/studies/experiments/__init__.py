"""Experiments: what is done to a model at work, question by question. One file each.

A measure reads a trace; an experiment takes something away or puts something in, and runs the model again.
"""
