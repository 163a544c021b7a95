"""Traces as they would be had they kept certain statistics alone, made from a trace that kept all."""

import floatscope as fs

VARIABLES = {  # statistic → what it leaves in a trace
    **dict.fromkeys(("mass", "groups"), ("column_sum",)),
    "head_mean": ("column_mean",),
    **{name: (name,) for name in ("entropy", "flow", "rollout", "value_norm", "residual_norm")},
    "qk": ("score", "cosine", "key_norm", "query_norm"),
    "rows": ("row_key", "row_weight", "row_flow"),
    "massive": ("massive", "massive_channel"),
    "lens": ("lens_token", "lens_probability", "lens_entropy"),
    "kv_drift": ("key_drift", "value_drift"),
    "experts": ("expert", "expert_weight"),
}


def keeping(trace, statistics):
    """The trace with these statistics and no others."""
    whole = trace.data
    if "column_mean" not in whole:
        whole = whole.assign(column_mean=whole["column_sum"].mean("head", skipna=False))
    kept = {variable for name in statistics for variable in VARIABLES[name]}
    left_out = {v for every in VARIABLES.values() for v in every} - kept
    return fs.Trace(whole.drop_vars(left_out, errors="ignore"))
