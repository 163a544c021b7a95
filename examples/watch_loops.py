"""Watch two loops that are not Floatscope's: `generate` of transformers, and ten lines of denoising.

No GPU, no download: both networks are inside the package. Where each one's attention rests is printed.
"""

import torch
from rich.console import Console

import floatscope as fs
from floatscope.plots.summary import summary


@torch.no_grad()
def denoise(network: torch.nn.Module, canvas: torch.Tensor, mask: int) -> torch.Tensor:
    """Reveal one token a step, where the network is surest."""
    while bool((canvas == mask).any()):
        logits = network(canvas).logits
        logits[..., mask] = -torch.inf
        p, token = logits.softmax(-1).max(-1)
        p[canvas != mask] = -1
        best = p.argmax(1, keepdim=True)
        canvas = canvas.scatter(1, best, token.gather(1, best))
    return canvas


def main() -> None:
    prompt = fs.Prompt.rag("Who wrote the letter?", ["Ann wrote it.", "Bob read it."])
    for name in ("pair/mdm", "pair/arm"):
        model = fs.load(name)
        with fs.watch(model, prompt=prompt) as session:
            ids = torch.tensor([session.encode(prompt).ids])
            if model.mask_id is None:
                result = model.net.generate(ids, max_new_tokens=8, do_sample=False)
            else:
                masks = torch.full((1, 8), model.mask_id)
                result = denoise(model.net, torch.cat([ids, masks], 1), model.mask_id)
        trace = session.trace(result)
        assert isinstance(trace, fs.Trace)
        Console().print(summary(trace))


if __name__ == "__main__":
    main()
