"""Traces as they would be had they kept certain statistics alone, made from a trace that kept all."""

import floatscope as fs

VARIABLES = {  # statistic → what it leaves in a trace
    name: [array.name for array in row.arrays if array.name != "rows_counted"]
    for name, row in fs.statistics.STATISTICS.items()
} | {"rows": ("row_key", "row_weight", "row_flow")}


def keeping(trace, statistics):
    """The trace with these statistics and no others."""
    whole = trace.data
    if "column_mean" not in whole:
        whole = whole.assign(column_mean=whole["column_sum"].mean("head", skipna=False))
    kept = {variable for name in statistics for variable in VARIABLES[name]}
    left_out = {v for every in VARIABLES.values() for v in every} - kept
    return fs.Trace(whole.drop_vars(left_out, errors="ignore"))
