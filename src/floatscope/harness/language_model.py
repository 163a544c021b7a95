"""Define FloatscopeLM, a Floatscope model with the interface of lm-evaluation-harness.

The model runs in one process on one device. `text` turns text into tokens, and `generation` reads a task's
settings for generation.
"""

import logging
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from tqdm import tqdm

from ..decode.likelihood import log_likelihoods, rolling_log_likelihood
from ..decode.state import prepared
from ..errors import UsageError
from ..instrument import Model, load
from ..interventions.parse import intervention_of
from ..sequences.prompt import encode, leading
from .generation import AnySampler, GenerationRequest, sampler_from
from .text import TextLM

log = logging.getLogger(__name__)


@register_model("floatscope")
class FloatscopeLM(TextLM):
    """A model with a sampler and an intervention, for lm-evaluation-harness.

    Args:
        model: A name, a path or a hub id that `floatscope.load` accepts, or a loaded model.
        sampler: A sampler, or its name; by default the sampler that fits the model.
        intervention: An intervention that is active during every request (`with intervention(model)`), or its
            text as on the command line, with ";" instead of ",": "mask-columns,k=5;control=random".
        samples: Number of random maskings of a text for each likelihood under a diffusion model.
        batch_size: Number of prompts, or of maskings of one text, per forward; results do not depend on this
            number.
        seed: Seed of the maskings, and of a sampler given by name.
        check_greedy: Whether a likelihood request also reports whether greedy decoding generates the text.
        truncate: Whether contexts that do not fit are cut from the left, and their number is logged; False
            raises an error for such a context.
        adapter, device, dtype: Options of `floatscope.load`.
        options: Fields of a sampler given by name, such as length, steps or temperature.
    """

    def __init__(
        self,
        model: str | Path | Model,
        sampler: str | AnySampler | None = None,
        *,
        intervention: str | Callable[[Any], AbstractContextManager[Any]] | None = None,
        samples: int = 128,
        batch_size: int | str = 8,
        seed: int = 0,
        check_greedy: bool = True,
        truncate: bool = False,
        adapter: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        **options: Any,
    ) -> None:
        if not str(batch_size).isdigit() or int(batch_size) < 1:
            raise UsageError(f"batch_size = {batch_size}", "Use a number, 1 or more.")
        if not isinstance(model, Model):
            if device and device.startswith("cuda") and not torch.cuda.is_available():
                # The harness's command line passes cuda:0 even if the user named no device.
                log.warning("no %s here: using the CPU", device)
                device = "cpu"
            model = load(model, adapter=adapter, dtype=dtype or "auto", device=device)
        elif adapter or device or dtype:
            raise UsageError(
                "adapter, device or dtype given with a loaded model", "Give them to load(...)."
            )
        super().__init__(model)
        self.sampler = sampler_from(model, sampler, options, seed)
        self.sampler.check(model)
        self.intervention: Callable[[Any], AbstractContextManager[Any]] | None = (
            intervention_of(intervention) if isinstance(intervention, str) else intervention
        )
        self.samples, self.batch_size, self.seed = int(samples), int(batch_size), int(seed)
        self.check_greedy, self.truncate = check_greedy, truncate
        self._device = model.device
        self._cut = 0  # contexts cut so far in this call

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        generation_requests = [
            GenerationRequest.from_kwargs(request.args[1]) for request in requests
        ]
        repeats: Counter[str] = Counter()
        members_by_sampler: dict[str, tuple[AnySampler, list[int]]] = {}
        for i, (request, generation_request) in enumerate(
            zip(requests, generation_requests, strict=True)
        ):
            sampler = generation_request.sampler(self.sampler, repeats[repr(request.args)])
            repeats[repr(request.args)] += 1
            members_by_sampler.setdefault(sampler.describe(), (sampler, []))[1].append(i)
        texts: dict[int, str] = {}
        with self._progress("Generating", len(requests), disable_tqdm) as (bar, max_tokens):
            for name, (sampler, members) in members_by_sampler.items():
                log.info("%s: %d requests with %s", self.model.name, len(members), name)
                space = max_tokens - sampler.length
                ids = {i: self._fitted(self._prompt(requests[i].args[0]), space) for i in members}
                members.sort(key=lambda i: -len(ids[i]))  # for little padding in a batch
                for start in range(0, len(members), self.batch_size):
                    batch = members[start : start + self.batch_size]
                    decodings = self.model.generate(
                        [ids[i] for i in batch], sampler, batch_size=self.batch_size
                    )
                    for i, decoding in zip(batch, decodings, strict=True):
                        texts[i] = generation_requests[i].text(self.model, decoding.answer_ids)
                        self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                    bar.update(len(batch))
        return [texts[i] for i in range(len(requests))]

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        pairs = [(request.args, *self._encode_pair(*request.args)) for request in requests]
        return self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = []
        errors: list[float] = []
        chunk = 16 * self.batch_size  # large enough to sort by length; then stored in the cache
        with self._progress("Scoring", len(requests), disable_tqdm) as (bar, max_tokens):
            for start in range(0, len(requests), chunk):
                batch = requests[start : start + chunk]

                def tick(completed: int, total: int, start: int = start) -> None:
                    bar.update(start + completed - bar.n)

                pairs = [(self._fitted(c, max_tokens - len(t)), t) for _, c, t in batch]
                likelihoods = log_likelihoods(
                    self.model,
                    pairs,
                    samples=self.samples,
                    batch_size=self.batch_size,
                    seed=self.seed,
                    check_greedy=self.check_greedy,
                    progress=tick,
                )
                for (args, _, _), likelihood in zip(batch, likelihoods, strict=True):
                    answers.append((likelihood.value, bool(likelihood.greedy)))
                    errors.append(likelihood.error)
                    self.cache_hook.add_partial("loglikelihood", args, answers[-1])
        self._log_errors(errors)
        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        answers: list[float] = []
        errors: list[float] = []
        with self._progress("Scoring texts", len(requests), disable_tqdm) as (bar, _):
            for request in requests:
                likelihood = rolling_log_likelihood(
                    self.model,
                    self.tok_encode(request.args[0], add_special_tokens=False),
                    prefix=self.prefix_token_id,
                    samples=self.samples,
                    batch_size=self.batch_size,
                    seed=self.seed,
                )
                answers.append(likelihood.value)
                errors.append(likelihood.error)
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, likelihood.value)
                bar.update()
        self._log_errors(errors)
        return answers

    @property
    def max_length(self) -> int:
        return self.model.context

    @property
    def max_gen_toks(self) -> int:
        return self.sampler.length

    def get_model_info(self) -> dict[str, Any]:
        """Return the settings that a result must record to be reproducible."""
        edit = self.intervention
        return {
            "floatscope_model": self.model.name,
            "floatscope_fingerprint": self.model.fingerprint,
            "floatscope_sampler": self.sampler.describe(),
            "floatscope_intervention": getattr(edit, "describe", lambda: str(edit))(),
            "floatscope_samples": self.samples,
            "floatscope_seed": self.seed,
        }

    @contextmanager
    def _progress(self, label: str, total: int, quiet: bool) -> Iterator[tuple[Any, int]]:
        """Apply the intervention and show a progress bar; yield the bar and the number of tokens that fit."""
        force = self.intervention(self.model) if self.intervention else nullcontext()
        self._cut = 0
        with force, tqdm(total=total, desc=label, disable=quiet or self.rank != 0) as bar:
            probe = encode(self.model, [0])  # any text
            yield bar, self.model.context - (len(prepared(self.model, probe).ids) - 1)
        if self._cut:
            log.warning("%d of %d contexts were cut from the left to fit", self._cut, total)

    def _fitted(self, ids: list[int], room: int) -> list[int]:
        if len(ids) <= room:
            return ids
        start = leading(self.tokenizer)
        lead = len(start) if ids[: len(start)] == start else 0
        if not self.truncate or room <= lead:
            raise UsageError(
                f"a context has {len(ids)} tokens; {self.model.name} has room for {room}",
                "Use fewer or shorter examples, generate fewer tokens, or pass truncate=True.",
            )
        self._cut += 1
        return ids[:lead] + ids[len(ids) - room + lead :]

    def _log_errors(self, errors: list[float]) -> None:
        if any(errors):
            median, largest = statistics.median(errors), max(errors)
            log.info(
                "standard error of the bounds: median %.3g, at most %.3g nats", median, largest
            )
