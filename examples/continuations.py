"""Continue twenty texts with the twin and print all of them, as in docs/explanation/twin_texts.md.

    python examples/continuations.py [--texts 20] [--temperature 0.7] [--block-length 8] > texts.md

Uses the first texts of `long:continuation`. About 35 s per text on two CPU cores.
"""

import argparse

import numpy as np

import floatscope as fs
from floatscope.stats.intervals import mean
from floatscope.tasks.long_scores import distinct

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--texts", type=int, default=20)
parser.add_argument("--model", default="twin/mdm")
parser.add_argument("--length", type=int, default=64)
parser.add_argument("--temperature", type=float, default=0.7)
parser.add_argument("--block-length", type=int, default=8, help="of a diffusion model")
given = parser.parse_args()

model = fs.load(given.model)
if model.is_diffusion:
    sampler = fs.Confidence(
        length=given.length, temperature=given.temperature, block_length=given.block_length
    )
else:
    sampler = fs.Autoregressive(length=given.length, temperature=given.temperature)
shares = []
for record in fs.tasks.long_records("long:continuation", given.texts):
    prompt = fs.Prompt.plain(record.question, chat=False)  # running text, no question
    text = model.generate(prompt, sampler).text
    shares.append(distinct(text))
    before = " ".join(record.question.split(" ")[-12:])
    print(f"- … {before} **{' '.join(text.split())}** ({shares[-1]:.2f})", flush=True)
middle, low, high = (float(x) for x in mean(np.array(shares), bounds=(0, 1)))
print(f"\nDistinct runs of four words: {middle:.2f} [{low:.2f}, {high:.2f}], n = {len(shares)}.")
