"""From captured tensors to a Trace: where what was seen meets what was decided."""
