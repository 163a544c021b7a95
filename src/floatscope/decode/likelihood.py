"""Compute the log-likelihood of a given text after a context, in nats.

The log-likelihood is exact for a causal model. A diffusion model has no likelihood in closed form; for
such a model the result is the lower bound of LLaDA's evaluation (2502.09992, algorithm 3), which `bound`
defines. The bound is computed over all masks of a short target, and estimated from a sample of masks for a
longer target. Interventions in force change the forwards. Contexts and targets are token ids;
`floatscope.harness` evaluates tasks in text.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import UsageError
from ..models import Model, attention_hook
from ..sequences.decoding import Progress
from ..sequences.prompt import Encoded, encode
from .bound import bound
from .draw import check_seed, stream
from .loop import decode
from .samplers.confidence import Confidence
from .score import log_p, target_logits
from .state import check_fits, prepared

Pair = tuple[Sequence[int], Sequence[int]]  # context, target


@dataclass(frozen=True)
class Likelihood:
    """The value of ln p(target | context) in nats, or of a lower bound on it.

    Attributes:
        value: the log-likelihood of the whole target.
        error: standard error of an estimated bound; 0 if no masks were drawn.
        greedy: whether greedy decoding gives the target; None if it was not checked.
    """

    value: float
    error: float = 0.0  # standard error of an estimate; 0 if nothing was drawn
    greedy: bool | None = None  # whether greedy decoding gives the target; None if not checked


def log_likelihood(
    model: Model, context_ids: Sequence[int], target_ids: Sequence[int], **options: Any
) -> Likelihood:
    """Return ln p(target | context) of one text, in nats.

    Args:
        model (Model): the model that scores the target.
        context_ids: token ids before the target.
        target_ids: token ids to score, at least one and none of them the mask token.
        **options: `samples`, `batch_size`, `seed`, `check_greedy` and `progress`, as for
            `log_likelihoods` in `floatscope.decode.likelihood`: 128 masks for a diffusion model, 8
            sequences per forward, seed 0, and a comparison with greedy decoding by default.

    Returns:
        A `Likelihood` with `value` (nats), `error` (standard error, 0 if exact) and `greedy` (whether
        greedy decoding gives the target).
    """
    return log_likelihoods(model, [(context_ids, target_ids)], **options)[0]


@torch.inference_mode()
def log_likelihoods(
    model: Model,
    pairs: Sequence[Pair],
    *,
    samples: int = 128,
    batch_size: int = 8,
    seed: int = 0,
    check_greedy: bool = True,
    progress: Progress | None = None,
) -> list[Likelihood]:
    """Return the Likelihood, ln p(target | context) in nats, of each pair, in the order of the pairs.

    Args:
        model: the model that scores the targets.
        pairs: token ids of each context and of the target that follows it.
        samples: number of masks drawn for a diffusion model, 128 by default. A target of L tokens with
            2^L − 1 ≤ samples is scored with every mask once, and its bound is exact.
        batch_size: sequences per forward: masks of one pair, or pairs whose targets have the same length.
        seed: seed of the masks. A pair's masks depend only on the seed and the pair's ids.
        check_greedy: also compare the target with greedy decoding. In a diffusion model this
            takes one forward per target token, and the most confident token is revealed first; in a causal
            model it takes no additional forward.
        progress: called with (pairs done, total pairs).
    """
    if samples < 2:
        raise UsageError(f"samples = {samples}", "Use 2 or more.")
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size}", "Use 1 or more.")
    check_seed(seed)
    with attention_hook.lock_network(model.net):
        return _scored(model, pairs, samples, batch_size, seed, check_greedy, progress)


def _scored(
    model: Model,
    pairs: Sequence[Pair],
    samples: int,
    batch_size: int,
    seed: int,
    check_greedy: bool,
    progress: Progress | None,
) -> list[Likelihood]:
    contexts = [_checked(model, context, target) for context, target in pairs]
    tick = progress or (lambda completed, total: None)
    if not model.is_diffusion:
        return _exact(model, contexts, [list(t) for _, t in pairs], batch_size, tick)
    likelihoods = []
    for number, (context, (context_ids, target)) in enumerate(zip(contexts, pairs, strict=True), 1):
        # Seeded by the given ids, so that masks are the same with and without an intervention.
        generator = stream(seed, (len(context_ids), *map(int, context_ids), *map(int, target)))
        likelihood = Likelihood(
            *bound(model, context, list(target), samples, batch_size, generator)
        )
        if check_greedy:
            sampler = Confidence(length=len(target), stop_at_eos=False)
            decoding = decode(model, [context], sampler)[0]
            likelihood = replace(likelihood, greedy=decoding.answer_ids == [int(i) for i in target])
        likelihoods.append(likelihood)
        tick(number, len(pairs))
    return likelihoods


def rolling_log_likelihood(
    model: Model,
    ids: Sequence[int],
    *,
    prefix: int,
    window: int | None = None,
    samples: int = 128,
    batch_size: int = 8,
    seed: int = 0,
) -> Likelihood:
    """Return ln p, in nats, of a text of any length; its windows are chosen to score every token once.

    Args:
        model: the model that scores the text.
        ids: token ids of the text.
        prefix: token id before the first token, such as the model's begin token.
        window: tokens per forward, including the context; the model's context length by default.
        samples, batch_size, seed: as for `log_likelihoods`.
    """
    if not len(ids):
        raise UsageError("the text is empty", "Give at least one token.")
    # number of tokens that interventions add
    added = len(prepared(model, encode(model, [prefix])).ids) - 1
    size = model.context - added if window is None else window
    if not 2 <= size <= model.context - added:
        raise UsageError(f"window = {size}", f"Use 2 to {model.context - added} tokens.")
    parts = log_likelihoods(
        model,
        list(windows(ids, prefix, size)),
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        check_greedy=False,
    )
    error = math.sqrt(sum(part.error**2 for part in parts))
    return Likelihood(math.fsum(part.value for part in parts), error)


def windows(ids: Sequence[int], prefix: int, size: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the context and the target of each window, so that every token is in one target.

    A window has `size` tokens, or fewer tokens if the text is shorter. The context is one token, or more
    tokens in the last window.
    """
    tokens = [int(i) for i in ids]
    yield [prefix], tokens[: size - 1]
    n_scored = size - 1
    while n_scored < len(tokens):
        end = min(n_scored + size - 1, len(tokens))
        yield tokens[end - size : n_scored], tokens[n_scored:end]
        n_scored = end


def _checked(model: Model, context: Sequence[int], target: Sequence[int]) -> Encoded:
    """Return the context as the edited model receives it; refuse a pair that cannot be scored."""
    if not len(target):
        raise UsageError("the target is empty", "Give at least one token to score.")
    if not len(context) and model.shift:
        raise UsageError(
            f"the context is empty, and {model.name} predicts a token from the token before it",
            "Begin the context with the model's begin or end token.",
        )
    encode(model, [*context, *target])  # checks that every id is in the vocabulary
    if model.mask_id in target:
        raise UsageError(
            "the target contains the mask token", "Leave it out: a mask is never predicted."
        )
    bare = Encoded(tuple(int(i) for i in context), ("prompt",) * len(context))
    prompt = prepared(model, bare)
    check_fits(model, len(prompt.ids), len(target), remedy="Shorten the context or the target.")
    return prompt


def _exact(
    model: Model,
    contexts: list[Encoded],
    targets: list[list[int]],
    batch_size: int,
    tick: Progress,
) -> list[Likelihood]:
    """Return the exact Likelihood of each pair in a causal model, in batches of targets of equal length.

    Contexts are padded on the left, so that the targets of a batch end at the same column.
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for i in sorted(range(len(targets)), key=lambda i: len(contexts[i].ids)):
        by_length[len(targets[i])].append(i)
    likelihoods: dict[int, Likelihood] = {}
    for members in by_length.values():
        for first in range(0, len(members), batch_size):
            batch = members[first : first + batch_size]
            target = torch.tensor([targets[i] for i in batch], device=model.device)
            logits = target_logits(model, [contexts[i] for i in batch], target, None)
            values = log_p(model, logits, target).double().sum(-1).tolist()
            greedy = (logits.argmax(-1) == target).all(-1).tolist()
            for i, value, is_greedy in zip(batch, values, greedy, strict=True):
                likelihoods[i] = Likelihood(value, greedy=is_greedy)
            tick(len(likelihoods), len(targets))
    return [likelihoods[i] for i in range(len(targets))]
