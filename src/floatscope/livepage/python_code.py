"""Write a run as Python code that repeats it: prompt, sampler and edits."""

from . import prompts
from .limits import KEEP
from .runs import Kept


def code_of(run: Kept) -> str:
    """Write the code, which runs where the package and the model are; `trace` is the run's trace."""
    options = {key: value for key, value in run.options.items() if key in ("device", "dtype")}
    loading = "".join(f", {key}={value!r}" for key, value in options.items() if value is not None)
    lines = ["import floatscope as fs"]
    if not run.code["own"]:
        lines += ["from floatscope.decode import SAMPLERS  # yours: load_plugin() brings it"]
    lines += [
        "",
        f"model = fs.load({run.spec!r}{loading})",
        f'assert model.fingerprint == "{run.fingerprint}"  # the weights of the page',
        prompts.code_of(run.prompt),
        f"sampler = {run.code['sampler']}",
    ]
    trace = f"trace = model.trace(prompt, sampler, keep={KEEP!r})"
    parts = run.code["interventions"]
    if not parts:
        return "\n".join([*lines, trace, "print(trace.text)", ""])
    if len(parts) == 1:
        lines.append(f"change = {parts[0]}")
    else:
        inside = "\n".join(f"        {part}," for part in parts)
        lines.append(f"change = fs.interventions.Together(\n    (\n{inside}\n    )\n)")
    return "\n".join([*lines, "with change(model):", f"    {trace}", "print(trace.text)", ""])
