"""The public Model, which decodes prompts and records traces, and `load`, which makes it."""

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
from .decode.blocks import max_steps
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
    """Keyword options of `trace`, documented in its docstring."""

    to: str | Path | Sequence[str | Path] | None


class Model(models.Model):
    """A language model that decodes, traces and reads texts. Created by `floatscope.load`.

    Args:
        name: name in tables, figures and errors.
        net (torch.nn.Module): the network, a transformers model.
        tokenizer: transformers tokenizer, or None for a model that takes token ids only.
        family (Family): architecture family that the checkpoint belongs to.
        direction (Direction): which keys a query sees: causal, bidirectional, block-causal or
            active-block.
        block: block length in tokens of a model that was trained with blocks; None for any other model.
        shift: 1 if row i predicts position i + 1 (right-shifted logits), 0 if it predicts position i.
        mask_id: token id of the mask, or None for a causal model.
        end_ids: token ids that end a text; the first is the end-of-sequence token.
        chat: whether prompts use the tokenizer's chat template by default.
        grid (Grid): whether the blocks of a block model begin at position 0 or at the answer.
        edits: the interventions in force, filled by their `with` blocks.
        graphs: whether a GPU may record and replay forwards: True if that saves time, "always" or False.
    """

    def encode(self, prompt: PromptLike) -> Encoded:
        """Tokenise a prompt and return its token ids, each with its region.

        Args:
            prompt: text, a Prompt, or a sequence of token ids.
        """
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
        """Decode without recording attention. The tokens are the same as with `trace`.

        Args:
            prompts: text, a Prompt or token ids; a list of them returns a list of decodings.
            sampler: decoding rule; by default Confidence() for a diffusion model and Autoregressive() for
                a causal one.
            batch_size: number of prompts decoded together, default 8. The tokens do not depend on it.
            progress: called with (steps done, total steps).
            cache: which keys and values to reuse between steps, as for `trace`.
            **options: `batch_size`, `progress` and `cache`. Any other name is refused with an error that
                suggests the option or sampler setting that was probably meant.

        Returns:
            A `Decoding`, or a list of them in the order of the prompts.
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
        """Decode and record the attention of every layer and head at every step.

        Args:
            prompts: text, a Prompt or token ids; a list of them returns a list of traces.
            sampler: decoding rule; by default Confidence() for a diffusion model and Autoregressive() for
                a causal one.
            keep: names of the statistics to record, from `floatscope.statistics.STATISTICS`. By default
                all except those recorded on request only ("head_mean", "entropy_mean", "massive", "lens",
                "kv_drift" and "experts").
            layers, heads, steps: layers, heads and steps to record, as a number, a slice or a sequence;
                all by default.
            groups: groups of queries with separate column sums: "coarse" (prompt, masked,
                revealed; the default) or "regions".
            top: number of strongest keys to record for the row that predicted each revealed position,
                default 8.
            dtype: "float32" (default), or "float16" for half the memory.
            batch_size: number of prompts decoded together, default 8. The tokens do not depend on it.
            progress: called with (steps done, total steps).
            cache: which keys and values to reuse between steps. "exact" keeps those of finished blocks,
                which gives the same tokens and statistics for the cost of one block per step. "auto"
                (default) is "exact" for block models without interventions or guidance, else None. None
                recomputes the whole canvas at every step. "prefix", "dual" and "dkv" are approximations
                for bidirectional models; "dkv:8" refreshes every 8 steps. A causal model always uses its
                exact cache.
            to: path to write the trace to, or one path per prompt. Each step is written when it is done,
                so that only a few steps are in memory; the returned trace reads from the path. If the
                process is killed, `Trace.load` opens the steps that were written.
            **options: `keep`, `layers`, `heads`, `steps`, `groups`, `top` and `dtype`.

        Returns:
            A `Trace`, or a list of them in the order of the prompts.

        Example:
            ```python
            trace = model.trace("Where was Ada Lovelace born?", keep=["mass"])
            trace.mass.sizes  # step, layer, head, key
            ```
        """
        with enough_memory(), models.attention_hook.lock_network(self.net):
            job = self._job(prompts, sampler, batch_size, progress)
            _require_options("trace", options, Keywords, job.sampler)
            trace_options = TraceOptions(**options)
            traces: list[Trace] = []
            paths = None if to is None else _paths(to, len(job.encoded), job.several)
            for batch, tick in job.batches():
                batch_paths = (
                    None if paths is None else paths[len(traces) : len(traces) + len(batch)]
                )
                recorder = Recorder(self, batch, job.sampler, trace_options, batch_paths)
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
        """Run one forward over a finished sequence and return a trace with one step.

        Papers that ignore denoising steps measure the attention of such a forward. The step changes no
        token.

        Args:
            finished: a trace or a decoding, whose prompt and answer are read together, or any prompt.
            answer: text that follows a prompt as if the model had generated it; empty by default. Not
                used with a trace or a decoding.
            **options: `keep`, `layers`, `heads`, `groups`, `top` and `dtype`, as for `trace`.
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
        """Read five states of a decoding again, so that their attention can be compared over the same rows.

        The states are the start, ¼, ½ and ¾ of the content, and the last step at which 8 rows are still
        masked (fewer rows if the answer is too short). Each state is read in one forward. Rows are
        grouped by how long they stay masked. `Movement` measures such a trace.

        Args:
            trace: a decoding to read again. It may come from another model, such as the trained network
                of which this model is the untrained control.
            **options: as for `trace`; by default `keep` is "mass" and "groups".

        Returns:
            A trace whose steps are the five states.
        """
        settings: TraceKeywords = {"keep": ("mass", "groups"), **options, "groups": "regions"}
        return reading_states(self, trace, choose_states(trace), TraceOptions(**settings))

    def pattern(
        self, trace: Trace, *, step: int, layer: Choice = None, head: Choice = None
    ) -> xr.DataArray:
        """Compute the attention matrix A_ij (query i, key j) of chosen heads at one step of a trace.

        Runs one forward over the step's canvas without a cache; the rows equal those of a decoding with an
        exact cache. The trace must come from this model, without interventions.

        Args:
            trace: a trace made by this model.
            step: step of the trace, from 0.
            layer, head: layers and heads to compute, as a number, a slice or a sequence; all by default.
                A single number drops the dimension.

        Returns:
            An array with dimensions layer, head, query, key. Each row sums to 1. The coordinates `token`
            and `query_token` hold the text of the positions.
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

        Memory use does not grow with the number of prompts. The tokens are the same as with `generate`.

        Args:
            prompts, sampler, batch_size, progress: as for `trace`.
            out: directory to create. The directory has this name only once it is complete.
            layers, steps: layers and steps to write, as a number, a slice or a sequence; all by default.
            positions: "prompt", "answer", "masked" or "revealed" (at that step), or position numbers
                counted over prompt and answer; all by default.
            dtype: "float32", "float16" or "bfloat16"; "auto" (default) is the model's dtype.

        Returns:
            The opened store.
        """
        path = Path(out)
        with enough_memory(), models.attention_hook.lock_network(self.net):
            job = self._job(prompts, sampler, batch_size, progress)
            selection = (layers, steps, positions, dtype)
            streaming = Streaming(self, job.sampler, job.steps, *selection)
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
                "an answer given as text needs a tokenizer", "Load the model with tokenizer=…."
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
        return _Job(encoded, chosen, several, batch_size, progress, max_steps(self, chosen))


def _require_options(
    function: str,
    options: Mapping[str, object],
    keywords: type,
    sampler: AnySampler | None = None,
) -> None:
    """Refuse an unknown option, and name the option or sampler setting that was probably meant."""
    accepted = list(keywords.__annotations__)
    settings = [field.name for field in fields(sampler)] if sampler else []
    for name in options:
        if name in accepted:
            continue
        match = closest(name, [*accepted, *settings])
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
            remedy = f"model.trace has it. {function} takes {', '.join(accepted)}."
        else:
            remedy = f"It takes {', '.join(accepted)}."
        raise UsageError(f"{function} has no option {name!r:.80}", remedy)


@dataclass(frozen=True)
class _Job:
    """The work of one call: encoded prompts, sampler, batch size and progress callback."""

    encoded: list[Encoded]
    sampler: AnySampler
    several: bool
    batch_size: int
    progress: Progress | None
    steps: int  # at most

    def batches(self) -> Iterator[tuple[list[Encoded], Progress]]:
        """Yield each batch of prompts with a callback that adds its steps to those of earlier batches."""
        starts = range(0, len(self.encoded), self.batch_size)
        total = len(starts) * self.steps
        for number, start in enumerate(starts):
            before = number * self.steps

            def tick(completed: int, n: int, before: int = before) -> None:
                if self.progress is not None:
                    self.progress(before + completed, total)

            yield self.encoded[start : start + self.batch_size], tick


def _paths(to: str | Path | Sequence[str | Path], n: int, several: bool) -> list[Path]:
    """Return one path per prompt from the argument `to`, or raise UsageError if it does not fit."""
    if several:
        paths = [] if isinstance(to, str | Path) else [Path(path) for path in to]
        if len(paths) != n or len(set(paths)) != n:
            raise UsageError(
                f"to = {to!r} for {n} prompts", "Give one path per prompt, all different."
            )
        return paths
    if not isinstance(to, str | Path):
        raise UsageError(f"to = {to!r} for one prompt", "Give one path.")
    return [Path(to)]


_AUTO = {"dtype": "auto"}  # values of arguments that do not override the text


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
    """Load a checkpoint of a supported family and check it with a few short forwards.

    Args:
        where: a directory, a .gguf file, a hub id, the name of an embedded model ("pair/mdm",
            "twin/mdm"), or a loaded transformers model. A text may contain settings, as on the command line:
            "ours=./dir,family=Llama,mask_id=4". An argument given here overrides such a setting.
        name: name in tables, figures and pages; the path by default.
        adapter: directory with a LoRA adapter in PEFT's format; the adapter is merged into the weights.
        dtype: "auto" (default) is bfloat16 on a GPU and float32 on a CPU.
        device: a torch device; "cuda" if available by default. "auto" spreads the layers over all GPUs,
            as `device_map` of transformers does (needs accelerate).
        tokenizer: replaces the checkpoint's tokenizer. A loaded transformers model needs it to take text.
        family: name of the family to read the weights as, whatever config.json says.
        direction: "causal", "bidirectional", "block-causal" or "active-block"; that of the family by default.
        block: block length in tokens of a block model, if the checkpoint does not state it.
        shift: 1 if row i predicts position i + 1, 0 if it predicts position i; that of the family by
            default.
        mask_id: token id of the mask, if the checkpoint does not state it.
        override_mask: use `mask_id` although the checkpoint names another mask token.
        grid: blocks begin at position 0 ("start") or at the answer ("padded"); as in the family by default.
        revision: branch, tag or commit of a hub id.
        weights: "trained" (default), or "permuted" for an untrained control: the entries of every weight
            matrix are shuffled, which keeps architecture and norms and removes everything learned. A
            loaded network is copied first.
        seed: seed of the permutation, default 0; each seed gives another control.
        check: run the self-check, True by default.

    Returns:
        The checked model.

    Example:
        ```python
        model = fs.load("pair/mdm")
        print(model.generate("Where was Ada Lovelace born?").text)
        ```
    """
    options = {key: value for key, value in locals().items() if key != "check"}
    ModelSpec("anywhere", name=name)  # refuses an invalid name
    if isinstance(where, str | ModelSpec):
        spec = ModelSpec.from_value(where)
        stated = {k: v for k, v in spec.settings.items() if options[k] in (None, _AUTO.get(k))}
        options |= {"where": spec.where, **stated}
    with enough_memory():
        model = models.load(into=Model, **options)
        if check:
            selfcheck.check(model)
    return model
