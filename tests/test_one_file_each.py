"""A newcomer's exercise: a statistic, a measure, a sampler and a family from outside, each from one file.

Each file is one section of docs/how-to/extending.md. It runs in a process of its own, with nothing but what
its own text imports; then its method is used. The process is forked from a server that has imported torch.
"""

import multiprocessing
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "extending.md"
IMPORTS = (
    "import floatscope as fs\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
)

USES = {
    "A statistic": """
trace = fs.load("pair/mdm").trace("Who?", fs.Confidence(length=4, steps=2), keep=("mass", "key_peak"))
peak = trace.data["key_peak"]
assert peak.dims == ("step", "layer", "head", "key") and (peak > 0).all()
""",
    "A measure": """
trace = fs.load("pair/mdm").trace("The end of the prompt.", fs.Confidence(length=4, steps=2))
end = fs.measures.MEASURES["end-of-prompt"](width=2)(trace).examples["end"]
stop = trace.info["prompt_length"]
expected = trace.mass.mean(["step", "head"]).isel(key=slice(stop - 2, stop)).sum("key")
assert abs(end.squeeze() - expected).max() < 1e-6
""",
    "A sampler": """
trace = fs.load("pair/mdm").trace("Who wrote Emma?", LeftToRight(length=6, steps=6))
masked = trace.data["masked"].values[:, -6:]  # (step, key)
assert (masked.argmax(1) == range(6)).all(), masked  # the leftmost mask moves right by one
""",
    "A family": """
import torch
torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
config = Olmo2Config(**sizes, num_attention_heads=4, pad_token_id=0)
Olmo2ForCausalLM(config).save_pretrained("olmo2-tiny")
trace = fs.load("olmo2-tiny").trace([1, 2, 3, 4], fs.Autoregressive(length=4))
assert trace.mass.sizes["key"] == 8 and trace.info["family"] == "OLMo2"
""",
}


@pytest.mark.parametrize("section", USES)
def test_one_file_adds_one_method(section, tmp_path):
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    block = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)[0]
    needed = "import torch\nimport xarray as xr\n" if section == "A measure" else ""
    program = tmp_path / "method.py"
    program.write_text(IMPORTS + needed + block + USES[section])
    errors = tmp_path / "errors.txt"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["floatscope.studies.worker"])
    process = context.Process(target=run, args=(program, errors))
    process.start()
    process.join()
    assert process.exitcode == 0, errors.read_text()


def run(program, errors):
    os.chdir(program.parent)
    sys.stderr = errors.open("w")
    runpy.run_path(str(program), run_name="__main__")
