"""The Model a user holds: loaded and checked, it decodes and traces."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import torch
import xarray as xr
from transformers import PreTrainedModel

from . import models
from .attention import selfcheck
from .decode import AnySampler, choose_sampler, decode
from .decode.blocks import most_steps
from .decode.state import prepared
from .errors import UsageError, closest, enough_memory
from .models.select import Choice
from .models.spec import ModelSpec
from .recording import pattern as patterns
from .recording.activations import Positions, Streaming
from .recording.finished import prompt_of, reading, reading_states
from .recording.options import TraceKeywords, TraceOptions
from .recording.recorder import Recorder
from .sequences.decoding import Decoding, Progress
from .sequences.prompt import Encoded, Prompt, PromptLike, encode
from .trace import Trace
from .trace.activations import Activations
from .trace.states import choose_states

Many = list[str] | list[Prompt] | list[Encoded] | list[list[int]]


class DecodeKeywords(TypedDict, total=False):
    """Options of `generate` and `trace`."""

    batch_size: int
    progress: Progress | None
    cache: str | None


class Keywords(DecodeKeywords, TraceKeywords, total=False):
    """Options of `trace`; its documentation says what they mean."""

    to: str | Path | Sequence[str | Path] | None


class Model(models.Model):
    """A language model under the instrument. Make one with `floatscope.load`."""

    def encode(self, prompt: PromptLike) -> Encoded:
        """A prompt as this model's tokens, each with its region."""
        return encode(self, prompt)

    @overload
    def generate(
        self, prompts: Many, sampler: AnySampler | None = ..., **options: Unpack[DecodeKeywords]
    ) -> list[Decoding]: ...
    @overload
    def generate(
        self,
        prompts: PromptLike,
        sampler: AnySampler | None = ...,
        **options: Unpack[DecodeKeywords],
    ) -> Decoding: ...
    def generate(
        self, prompts: Any, sampler: AnySampler | None = None, **options: Unpack[DecodeKeywords]
    ) -> Decoding | list[Decoding]:
        """Decode without looking: the same tokens as `trace`, whose options these are.

        A list of prompts gives a list.
        """
        with enough_memory(), models.attention_hook.lock_network(self.net):
            batch_size, progress = options.get("batch_size", 8), options.get("progress")
            job = self._job(prompts, sampler, batch_size, progress)
            _require_options("generate", options, DecodeKeywords, job.sampler)
            cache = options.get("cache", "auto")
            decodings: list[Decoding] = []
            for batch, tick in job.batches():
                decodings += decode(self, batch, job.sampler, progress=tick, cache=cache)
            return decodings if job.several else decodings[0]

    @overload
    def trace(
        self, prompts: Many, sampler: AnySampler | None = ..., **options: Unpack[Keywords]
    ) -> list[Trace]: ...
    @overload
    def trace(
        self, prompts: PromptLike, sampler: AnySampler | None = ..., **options: Unpack[Keywords]
    ) -> Trace: ...
    def trace(
        self,
        prompts: Any,
        sampler: AnySampler | None = None,
        *,
        batch_size: int = 8,
        progress: Progress | None = None,
        cache: str | None = "auto",
        to: str | Path | Sequence[str | Path] | None = None,
        **options: Unpack[TraceKeywords],
    ) -> Trace | list[Trace]:
        """Decode and record what every kept step, layer and head attended to.

        Args:
            prompts: text, a Prompt, token ids; a list of texts or Prompts gives a list of traces.
            sampler: by default Confidence() for a diffusion model, Autoregressive() for a causal one.
            keep: which statistics, of `floatscope.statistics.STATISTICS`; by default all but "massive",
                "lens" and "kv_drift", which have to be named.
            layers, heads, steps: which of them, as a number, a slice or a sequence; all by default.
            groups: query groups of the column sums: "coarse" (prompt, masked, revealed) or "regions".
            top: how many of the strongest keys to keep of the row that predicted a revealed position.
            dtype: float32, or float16 for half the memory.
            batch_size: prompts decoded together; the tokens do not depend on it.
            progress: called with (steps done, steps in all).
            cache: "exact" keeps the keys of finished blocks: the same tokens and statistics, for the rows of
                one block per step. "auto" is that, for models in blocks and without interventions or
                guidance. None forwards everything at every step. "prefix", "dual" and "dkv" approximate,
                for models that see in both directions. A causal model always has its own.
            to: a path (for a list of prompts, one for each): each step is written there as it is done, and
                a few are in memory. The trace that comes back reads from there when it is asked. If the
                process is ended, `Trace.load` opens the steps that are there.
        """
        with enough_memory(), models.attention_hook.lock_network(self.net):
            job = self._job(prompts, sampler, batch_size, progress)
            _require_options("trace", options, Keywords, job.sampler)
            kept = TraceOptions(**options)
            traces: list[Trace] = []
            paths = None if to is None else _paths(to, len(job.encoded), job.several)
            for batch, tick in job.batches():
                here = None if paths is None else paths[len(traces) : len(traces) + len(batch)]
                recorder = Recorder(self, batch, job.sampler, kept, here)
                with recorder:
                    decodings = decode(self, batch, job.sampler, recorder, tick, cache)
                traces += recorder.traces(decodings)
            return traces if job.several else traces[0]

    def read(
        self,
        finished: Trace | Decoding | PromptLike,
        *,
        answer: str = "",
        **options: Unpack[TraceKeywords],
    ) -> Trace:
        """One forward over a finished sequence, as papers do that look at no denoising step.

        Takes a trace or a decoding (prompt and answer together), or any prompt, with an `answer`
        that is read as if the model had given it; the options of `trace`. The trace has one step,
        in which nothing changes.
        """
        _require_options("read", options, TraceKeywords)
        if isinstance(finished, Trace):
            prompt = prompt_of(finished)
            ids = finished.canvas.values[-1, len(prompt.ids) :].tolist()
        elif isinstance(finished, Decoding):
            prompt, ids = finished.prompt, finished.answer_ids
        else:
            prompt, ids = encode(self, finished), self._answer_ids(answer)
        return reading(self, prompt, ids, TraceOptions(**options))

    def read_states(self, trace: Trace, **options: Unpack[TraceKeywords]) -> Trace:
        """Read five states of a decoding again, so that they can be compared on the same rows.

        The states are the start, ¼, ½ and ¾ of the content, and the last step at which 8 rows are still
        masked (fewer where the answer is too short): one forward each. Rows are grouped by how long they
        stay masked. `Movement` measures such a trace. The decoding may be another model's, such as that of
        the trained network of which this one is the control.
        """
        asked: TraceKeywords = {"keep": ("mass", "groups"), **options, "groups": "regions"}
        return reading_states(self, trace, choose_states(trace), TraceOptions(**asked))

    def pattern(
        self, trace: Trace, *, step: int, layer: Choice = None, head: Choice = None
    ) -> xr.DataArray:
        """The whole attention A_ij of chosen heads at a step of a trace: layer, head, query, key.

        One forward over the canvas that the step was given; rows of a cached decoding are the same
        without a cache. A single number for `layer` or `head` drops that dimension. `token` and
        `query_token` name the positions. Only for the model that was traced, without interventions.
        """
        return patterns.pattern(self, trace, step, layer, head)

    def activations(
        self,
        prompts: Any,
        sampler: AnySampler | None = None,
        *,
        out: str | Path,
        layers: Choice = None,
        positions: Positions = None,
        steps: Choice = None,
        dtype: str = "auto",
        batch_size: int = 8,
        progress: Progress | None = None,
    ) -> Activations:
        """Decode, and write the residual stream at the input of chosen layers to a store on disk.

        What is in memory does not grow with the number of prompts. The tokens are those of `generate`.

        Args:
            prompts, sampler, batch_size, progress: as for `trace`.
            out: a directory that does not exist yet; it is there when all of it is.
            layers, steps: which of them, as a number, a slice or a sequence; all by default.
            positions: "prompt", "answer", "masked" or "revealed" (at that step), or numbers, counted in
                prompt and answer together; all by default.
            dtype: float32, float16, bfloat16; "auto" is the model's own.
        """
        path = Path(out)
        with enough_memory(), models.attention_hook.lock_network(self.net):
            job = self._job(prompts, sampler, batch_size, progress)
            wanted = (layers, steps, positions, dtype)
            streaming = Streaming(self, job.sampler, job.steps, *wanted)
            with streaming.to(path):
                for batch, tick in job.batches():
                    streaming.start(batch)
                    streaming.finish(decode(self, batch, job.sampler, streaming, tick))
        return Activations.load(path)

    def _answer_ids(self, answer: str) -> list[int]:
        if not answer:
            return []
        if self.tokenizer is None:
            raise UsageError(
                "an answer in words needs a tokenizer", "Load the model with tokenizer=…."
            )
        return list(self.tokenizer.encode(answer, add_special_tokens=False))

    def _job(
        self, prompts: Any, sampler: AnySampler | None, batch_size: int, progress: Progress | None
    ) -> "_Job":
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size = {batch_size}", "Use a whole number, 1 or more.")
        ids = isinstance(prompts, list | tuple) and all(isinstance(i, Integral) for i in prompts)
        several = isinstance(prompts, list | tuple) and not ids
        if isinstance(prompts, list | tuple) and not prompts:
            raise UsageError("no prompts", "Give at least one.")
        chosen = choose_sampler(self, sampler)
        encoded = [prepared(self, encode(self, p)) for p in (prompts if several else [prompts])]
        return _Job(encoded, chosen, several, batch_size, progress, most_steps(self, chosen))


def _require_options(
    function: str,
    options: Mapping[str, object],
    keywords: type,
    sampler: AnySampler | None = None,
) -> None:
    """Refuse an option that the function does not have; name the option or sampler setting that was meant."""
    known = list(keywords.__annotations__)
    settings = [field.name for field in fields(sampler)] if sampler else []
    for name in options:
        if name in known:
            continue
        match = closest(name, [*known, *settings])
        setting = f"{type(sampler).__name__}({match}={options[name]!r:.40})"
        call = f"model.{function}(prompt, fs.samplers.{setting})"
        if name in settings:
            raise UsageError(
                f"{name} is a setting of the sampler, and {function} does not take it",
                f"Write {call}.",
            )
        if match in settings:
            remedy = f"Did you mean {match!r}, a setting of the sampler? Write {call}."
        elif match:
            remedy = f"Did you mean {match!r}?"
        elif name in Keywords.__annotations__:
            remedy = f"model.trace has it. {function} takes {', '.join(known)}."
        else:
            remedy = f"It takes {', '.join(known)}."
        raise UsageError(f"{function} has no option {name!r:.80}", remedy)


@dataclass(frozen=True)
class _Job:
    """Prompts on their way through a sampler, batch by batch."""

    encoded: list[Encoded]
    sampler: AnySampler
    several: bool
    batch_size: int
    progress: Progress | None
    steps: int  # at most

    def batches(self) -> Iterator[tuple[list[Encoded], Progress]]:
        starts = range(0, len(self.encoded), self.batch_size)
        total = len(starts) * self.steps
        for number, start in enumerate(starts):
            before = number * self.steps

            def tick(done: int, of: int, before: int = before) -> None:
                if self.progress is not None:
                    self.progress(before + done, total)

            yield self.encoded[start : start + self.batch_size], tick


def _paths(to: str | Path | Sequence[str | Path], n: int, several: bool) -> list[Path]:
    """Where each prompt's trace is written."""
    if several:
        paths = [] if isinstance(to, str | Path) else [Path(one) for one in to]
        if len(paths) != n or len(set(paths)) != n:
            raise UsageError(
                f"to = {to!r} for {n} prompts", "Give as many paths as prompts, each another one."
            )
        return paths
    if not isinstance(to, str | Path):
        raise UsageError(f"to = {to!r} for one prompt", "Give one path.")
    return [Path(to)]


_AUTO = {"dtype": "auto"}  # arguments that leave it to the text


def load(
    where: str | Path | PreTrainedModel | ModelSpec,
    *,
    name: str | None = None,
    adapter: str | Path | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    tokenizer: Any = None,
    family: str | None = None,
    direction: str | None = None,
    block: int | None = None,
    shift: int | None = None,
    mask_id: int | None = None,
    override_mask: bool | None = None,
    grid: str | None = None,
    revision: str | None = None,
    weights: str = "trained",
    seed: int = 0,
    check: bool = True,
) -> Model:
    """Load a checkpoint of a known family, natively, and check that it is sound.

    Args:
        where: a directory, a .gguf file, a hub id, an embedded model's name ("pair/mdm", "twin/mdm"), or
            a transformers model that is already loaded. Also all of it in one text, as on the command
            line: "ours=./dir,family=Llama,mask_id=4"; an argument given here wins over it.
        name: what tables, figures and pages call it; its path by default.
        adapter: a directory with a LoRA in PEFT's format, merged into the weights.
        dtype: "auto" is bfloat16 on a GPU and float32 on a CPU.
        device: "cuda" where there is one, by default; "auto" spreads the layers over all GPUs, as
            transformers' `device_map` does (needs accelerate).
        tokenizer: instead of the checkpoint's own; needed for text with an already loaded model.
        family: read the weights as this family's, whatever config.json calls them.
        direction, block, grid, shift, mask_id: what a checkpoint does not say, or what a derived model is
            used as. `grid`: blocks begin at position 0 ("start") or at the answer ("padded").
        override_mask: take `mask_id` although the checkpoint names another mask token.
        revision: of a hub id.
        weights: "permuted" moves every weight matrix's entries to other places, an untrained control:
            the same architecture and norms, and nothing that was learnt. A loaded network is copied.
        seed: of that permutation; another seed is another control.
        check: run the self-check (a few short forwards).
    """
    options = {key: value for key, value in locals().items() if key != "check"}
    ModelSpec("anywhere", name=name)  # refuses what is no name
    if isinstance(where, str | ModelSpec):
        spec = ModelSpec.of(where)
        said = {k: v for k, v in spec.settings.items() if options[k] in (None, _AUTO.get(k))}
        options |= {"where": spec.where, **said}
    with enough_memory():
        model = models.load(into=Model, **options)
        if check:
            selfcheck.check(model)
    return model
