"""Limits of the live page: sizes of requests and runs, and the statistics that the trace of a run stores."""

KEEP = ("mass", "groups", "rows")  # of a run's trace: what the viewer shows
LIMITS = {
    "body": 1_000_000,  # bytes
    "prompt_chars": 400_000,
    "passages": 128,
    "steps": 1024,
    "length": 1024,
    "trace_bytes": 2_000_000_000,  # of one run, in its model's process
    "queue": 32,  # jobs that wait for one model
    "touches": 64,
    "positions": 1024,  # of one touch
    "state_chars": 100_000,
    "state_runs": 8,
    "export_runs": 8,
}
