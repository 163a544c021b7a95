"""Experiments, one file each: changes to a running model, question by question.

A measure reads a trace. An experiment removes or inserts something and runs the model again.
"""
