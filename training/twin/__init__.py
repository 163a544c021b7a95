"""How the twin was made: SmolLM2-135M-Instruct, taught to fill in masks, and its causal control.

One parent, one set of documents in one order, one adapter, one budget; two objectives. `mdm` sees the
whole canvas and restores masked tokens, `arm` sees the past and predicts the next one; both are asked
for the same tokens with the same weights. docs/explanation/twin.md has the results; README.md beside this
file says what to type.
"""
