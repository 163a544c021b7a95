"""A copying model built by hand: one head carries the answer, and everything else is small noise.

A real checkpoint (LLaDA's format, or Llama's), written and then loaded like any other. Twelve letters are
the answers there are. The planted head's queries come from the asking row (a mask; in the causal model the
colon of "Answer:"), its keys from answer letters, and what it reads there is the letter, which it writes
where the output layer looks for it. So of all edges one matters: from the asking row to the letter in the
passage, in that layer and that head. With `waits` the masks are keys too, and read "-": as long as another
position is masked a row says "-", so that the letter comes at the last step alone. With `relay` the letter
goes by way of others: a layer below, every colon reads it, and the asking row reads the colons.

    planted = planted_copy(folder)
    model = fs.load(planted.path)
    model.generate(planted.clean, planted.sampler).text == planted.answer
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import floatscope as fs
from floatscope.models import tiny
from floatscope.tasks import Passage

LETTERS = "BDGHJKLMRVXZ"  # none of them occurs in a template's words
FILLER = "-"
WIDTH, HEADS = 64, 4
DIM = WIDTH // HEADS
# What the coordinates of the residual stand for; the rest is noise.
IS_LETTER, ASKS, CODE, SAID, RELAYS = 0, 1, 2, 2 + DIM, 2 + 2 * DIM
SLOW = DIM // 2 - 1  # of a head: a coordinate that rotation hardly turns, whatever the distance
SIZE = WIDTH**0.5  # of an embedding, so that the first norm leaves it as it is

_NAMES = {
    "LLaDA": (
        "model.transformer.wte.weight",
        "model.transformer.ff_out.weight",
        "model.transformer.blocks.{}.{}.weight",
        "attn_out",
    ),
    "Llama": (
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.{}.self_attn.{}.weight",
        "o_proj",
    ),
}


@dataclass(frozen=True)
class PlantedCopy:
    """Where the checkpoint is, and what was planted in it."""

    path: Path
    family: str
    layer: int
    head: int
    layers: int
    step: int  # at which the answer is decided
    length: int
    clean: fs.Prompt
    corrupted: fs.Prompt  # of the same length, with another letter in the passage
    answer: str
    other: str  # the letter in the corrupted passage
    ids: tuple[int, ...]  # of the clean prompt
    source: int  # where the letter stands in it, from 0

    @property
    def sampler(self):
        if self.family == "Llama":
            return fs.Autoregressive(length=1, stop_at_eos=False)
        return fs.Confidence(length=self.length, steps=self.length)

    @property
    def heads(self):
        return [(layer, head) for layer in range(self.layers) for head in range(HEADS)]

    @property
    def canvas(self):
        """The clean prompt's ids as the last step is given them, and the row that predicts the answer."""
        if self.family == "LLaDA":
            return [*self.ids, tiny.MASK], len(self.ids)
        return list(self.ids), len(self.ids) - 1


def planted_copy(
    folder,
    family="LLaDA",
    *,
    layers=2,
    layer=1,
    head=2,
    waits=False,
    relay=False,
    noise=0.05,
    seed=0,
):
    """Write the model into `folder`, which says which head was planted where."""
    shape = tiny.Shape(
        layers=layers, width=WIDTH, heads=HEADS, kv_heads=HEADS, spread=noise, seed=seed
    )
    path = tiny.write(family, folder, shape)
    weights = load_file(path / "model.safetensors")
    weights |= {key: torch.ones_like(one) for key, one in weights.items() if one.ndim == 1}
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    embedding, output, block, mixing = _NAMES[family]
    alphabet = [tokenizer.token_to_id(letter) for letter in LETTERS + FILLER]
    asking = tiny.MASK if family == "LLaDA" else tokenizer.token_to_id(":")
    weights[embedding] = _embedding(
        alphabet[:-1], asking, shape, tokenizer.token_to_id(":") if relay else None
    )
    for place, token in enumerate(alphabet):
        weights[output][:, SAID + place] = 0
        weights[output][token] = 0
    for place, token in enumerate(alphabet):
        weights[output][token, SAID + place] = 4.0 if waits else 1.5

    rows = slice(head * DIM, (head + 1) * DIM)
    hops = [
        (layer, ASKS, IS_LETTER, CODE)
    ]  # who asks, what it looks for, where the letter stands there
    if relay:
        hops = [(layer - 1, RELAYS, IS_LETTER, CODE), (layer, ASKS, RELAYS, SAID)]
    for at, asks, looks_for, code in hops:
        query, key, value = (
            weights[block.format(at, name)] for name in ("q_proj", "k_proj", "v_proj")
        )
        for one in (query, key, value):
            one[rows] = 0
        query[head * DIM + SLOW, asks] = 1
        key[head * DIM + SLOW, looks_for] = 1.5
        mixed = weights[block.format(at, mixing)]
        mixed[:, rows] = 0
        for place in range(len(LETTERS)):
            value[head * DIM + place, code + place] = 1
        for place in range(len(alphabet)):
            mixed[SAID + place, head * DIM + place] = 2
    if waits:  # as strong as the letter: with n masks the letter gets 1 / (1 + n)
        key[head * DIM + SLOW, ASKS] = 1.5 / 2**0.5
        value[head * DIM + len(LETTERS), ASKS] = 0.5
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    clean, corrupted = prompt("J"), prompt("X")
    ids = [i for part in clean.parts for i in tokenizer.encode(part.text).ids]
    length = 3 if waits else 1
    return PlantedCopy(
        *(path, family, layer, head, layers, length - 1, length),
        *(clean, corrupted, "J", "X", tuple(ids), ids.index(tokenizer.token_to_id("J"))),
    )


def prompt(letter):
    passages = ["nothing is said here.", f"the letter is {letter}, they say.", "nor is it here."]
    return fs.Prompt.rag("which letter is it?", passages, gold=1)


def records(count, seed=0):
    """Questions for the model: three passages, one of them with a letter, at a place of its own."""
    generator = torch.Generator().manual_seed(seed)

    def below(most):
        return int(torch.randint(most, (), generator=generator))

    names = ("ada", "bo", "cy", "dee", "eva", "finn", "gus", "hal", "ivy", "jo")
    made, known = [], set()
    for number in range(count):
        text = None
        while text is None or text in known:  # two questions about one passage are not independent
            letter, name = LETTERS[below(len(LETTERS))], names[below(len(names))]
            text = f"the letter of {name} is {letter}" + ", we hear." * below(3)
        known.add(text)
        gold = Passage(text, gold=True)
        others = [Passage(f"no letter is known of {names[below(len(names))]}.") for _ in range(2)]
        others.insert(below(3), gold)
        made.append(
            fs.tasks.Record(f"copy-{number}", f"which letter has {name}?", (letter,), tuple(others))
        )
    return made


def _embedding(letters, asking, shape, relay=None):
    """Each token a random direction that no planted coordinate knows; letters and the asking one aside."""
    generator = torch.Generator().manual_seed(shape.seed + 1)
    rows = torch.zeros(shape.vocab, WIDTH)
    free = SAID + DIM
    rows[:, free:] = torch.randn(shape.vocab, WIDTH - free, generator=generator)
    rows *= SIZE / rows.norm(dim=1, keepdim=True)
    for place, letter in enumerate(letters):
        rows[letter] = 0
        rows[letter, [IS_LETTER, CODE + place]] = SIZE / 2**0.5
    rows[asking] = 0
    rows[asking, ASKS] = SIZE
    if relay is not None:
        rows[:, RELAYS] = 0
        rows[relay] = 0
        rows[relay, RELAYS] = SIZE
    return rows
