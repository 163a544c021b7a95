"""Experiments: changes to a running model, question by question, with one file each.

A measure reads a trace. An experiment removes or inserts something and runs the model again.
"""
