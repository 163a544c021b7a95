"""Record the generation loop of other code: every forward of a watched network becomes a step of a trace.

The ids, mask, positions and cache of a forward determine which canvas the forward reads and which of its
columns the forward computes. If the attention of the network does not match these columns, the session raises
an error. The tokens that a step revealed are read from the ids of the next forward.
"""

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..errors import UsageError
from ..models import Model, attention_hook
from ..models.foreign import SdpaCalls, StandIn, watched_model
from ..models.spec import ModelSettings
from ..sequences.prompt import Encoded, PromptLike, encode
from ..trace import Trace
from .options import TraceKeywords, TraceOptions
from .watched import ComputedColumns, Generation, mask_of

# Statistics of q and k, available if only calls of SDPA can be observed.
_OF_QK = ("mass", "groups", "entropy", "flow", "rollout", "qk", "rows")

Rows = Callable[[dict[str, Any]], Tensor | tuple[Tensor, Tensor] | None]


def watch(
    network: nn.Module | Model,
    *,
    tokenizer: Any = None,
    prompt: PromptLike | Sequence[PromptLike] | None = None,
    prompt_length: int | None = None,
    rows: Rows | None = None,
    name: str | None = None,
    family: str | None = None,
    direction: str | None = None,
    block: int | None = None,
    grid: str | None = None,
    shift: int | None = None,
    mask_id: int | None = None,
    **options: Unpack[TraceKeywords],
) -> "Session":
    """Watch a network while other code decodes with it; then call `session.trace()`.

    Each forward of the network is a step. The network's results do not change, and nothing remains
    attached after the `with` block.

    Args:
        network: a transformers model, any module with a `config` whose attention is PyTorch's
            `scaled_dot_product_attention`, or a Model of `floatscope.load`.
        tokenizer: tokenizer for the texts of tokens; without a tokenizer, ids are shown. A Model has its own
            tokenizer.
        prompt: text with named parts, as `fs.Prompt`; for a batch, one prompt per sequence. The network must
            receive exactly the tokens of the prompt, `session.encode(prompt).ids`. By default the canvas
            before the answer is one part, "prompt".
        prompt_length: column at which the answers begin, padding included. By default the column of the
            first mask in the first canvas, or, for a causal network, the end of the first forward's ids.
        rows: for a cache that chooses computed rows inside the network: a function of the forward's
            arguments, by name, that returns a boolean (b, k), or None for all rows. If the keys in
            attention are in another order than the canvas, the function returns two tensors: the boolean
            and the column of each key, (b, k).
        name, family, direction, block, grid, shift, mask_id: facts that the network's config lacks, as
            for `floatscope.load`.
        **options: `keep`, `layers`, `heads`, `groups`, `top` and `dtype`, as for `Model.trace`. A network
            that does not use transformers' attention interface has no statistics beyond q and k: "mass",
            "groups", "entropy", "flow", "rollout", "qk" and "rows".

    Returns:
        A `Session`, to be used as a context manager.

    Example:
        ```python
        with fs.watch(network, tokenizer=tokenizer) as session:
            network.generate(**inputs)
        trace = session.trace()
        ```
    """
    if prompt_length is not None and (not isinstance(prompt_length, int) or prompt_length < 1):
        raise UsageError(f"prompt_length = {prompt_length!r}", "Use a whole number, 1 or more.")
    if "steps" in options:
        raise UsageError(
            "watch has no argument steps", "Choose steps later: trace.data.isel(step=…)."
        )
    stated = ModelSettings(
        name=name,
        family=family,
        direction=direction,
        block=block,
        shift=shift,
        mask_id=mask_id,
        grid=grid,
    )
    if not isinstance(network, Model):
        module, model = network, watched_model(network, tokenizer, stated)
    elif stated == ModelSettings() and tokenizer is None:
        module, model = network.net, network
    else:
        raise UsageError(
            "network is a loaded Model, whose facts are fixed", "Give them to fs.load."
        )
    if isinstance(model.net, StandIn):
        if options.get("keep") is None:
            options["keep"] = _OF_QK
        if unknown := sorted(TraceOptions(**options).kept_statistics - set(_OF_QK)):
            problem = f"{unknown[0]!r} requires a network with transformers' attention interface"
            raise UsageError(
                problem, f"keep can include {', '.join(_OF_QK)} for a {type(network).__name__}."
            )
    if model.edits:
        problem = "interventions are active, which follow the steps of Floatscope's own decodings"
        raise UsageError(
            problem, "Use model.trace with them, or call watch outside their with block."
        )
    used = module.config._attn_implementation if model.net is module else "sdpa"
    if used not in ("sdpa", attention_hook.NAME):
        instead = "while watched, it uses PyTorch's SDPA, which agrees up to rounding"
        warnings.warn(f"{model.name} is set to {used}: {instead}", stacklevel=2)
    several = isinstance(prompt, list | tuple) and not all(isinstance(i, int) for i in prompt)
    prompts: Any = prompt if several else [] if prompt is None else [prompt]
    encoded = [encode(model, single) for single in prompts]
    return Session(module, model, TraceOptions(**options), encoded, prompt_length, rows)


@dataclass(eq=False, repr=False)
class Session:
    """Context manager that records a watched network, returned by `floatscope.watch`."""

    network: nn.Module
    model: Model
    options: TraceOptions
    prompts: list[Encoded]
    prompt_length: int | None
    rows: Rows | None
    generations: list[Generation] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)
    _running: Generation | None = None  # set while one of its forwards runs
    _thread: int | None = None  # thread that opened the session
    _begins: bool = False  # the next forward is the first of a generation

    def encode(self, prompt: PromptLike) -> Encoded:
        """Tokenise a prompt, with the region of each token; pass `.ids` to the network.

        Args:
            prompt: text, a Prompt or token ids.
        """
        return encode(self.model, prompt)

    def __enter__(self) -> "Session":
        if self._thread is not None:
            raise UsageError("this session is already open", "Create another: fs.watch(network).")
        with ExitStack() as stack:
            stack.enter_context(attention_hook.lock_network(self.network))
            stack.enter_context(attention_hook.attach(self.model.net, self._attend))
            stack.enter_context(_wrapped(self.network, "forward", self._forward))
            if hasattr(self.network, "generate"):
                stack.enter_context(_wrapped(self.network, "generate", self._generate))
            self._open = stack.pop_all()
        self._open.callback(self._close_last)
        self._thread = threading.get_ident()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread = None
        self._open.close()

    def trace(self, result: Any = None, *, generation: int | None = None) -> Trace | list[Trace]:
        """Return one trace per prompt of a batch, in order; for a single prompt, the trace itself.

        Args:
            result: token ids (b, s) that the loop returned, for the tokens that the last forward revealed.
                Not needed after `network.generate`.
            generation: number of the generation, from 0, if the session watched several generations.
        """
        n = len(self.generations)
        if not n:
            remedy = (
                "Inside the with block, call network(input_ids=…) or network.generate(…) itself."
            )
            raise UsageError("no forward of the network was recorded", remedy)
        if generation not in (range(n) if n > 1 else (None, 0)):
            problem = f"generation = {generation}, but {n} generations were watched"
            raise UsageError(problem, f"Choose one: session.trace(generation=0), …, {n - 1}.")
        traces = self.generations[generation or 0].traces(result)
        return traces if len(traces) > 1 else traces[0]

    def _forward(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run and record a forward of the network as a step. A forward that fails ends its generation."""
        if threading.get_ident() != self._thread:  # would wait forever for the session's thread
            remedy = "Open the session in the thread that runs the loop."
            raise UsageError(
                "a watched network ran in a thread other than that of its session", remedy
            )
        if self._running is not None:  # nested forward of the same network
            return forward(*args, **kwargs)
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.network.parameters()):
            raise UsageError("a watched forward keeps gradients", "Run it inside torch.no_grad().")
        arguments = dict(zip(inspect.signature(forward).parameters, args, strict=False)) | kwargs
        with torch.inference_mode():
            generation = self._running = self._begin(arguments)
        if generation is None:
            return forward(*args, **kwargs)
        net = self.model.net
        try:
            with (
                generation.forward(),
                SdpaCalls(net) if isinstance(net, StandIn) else nullcontext(),
            ):
                return forward(*args, **kwargs)
        except BaseException:
            self.generations.remove(generation)
            generation.close()
            raise
        finally:
            self._running = None

    def _generate(self, generate: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before = len(self.generations)
        self._begins = not _cache_length(kwargs.get("past_key_values"))
        output = generate(*args, **kwargs)
        ids = getattr(output, "sequences", output)
        if len(self.generations) == before + 1 and isinstance(ids, Tensor):
            self.generations[-1].result = ids
        return output

    def _attend(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        return proceed(call) if self._running is None else self._running.attend(call, proceed)

    def _close_last(self) -> None:
        if self.generations:
            self.generations[-1].close()

    def _begin(self, arguments: dict[str, Any]) -> Generation | None:
        """Start a step and return its generation; None for a forward that is not recorded (guidance)."""
        generation = self.generations[-1] if self.generations else None
        # A generation is closed if the forward after its last one failed.
        if generation is not None and (self._begins or generation.closed):
            generation = None
        self._begins = False
        computed = self._computed(arguments, generation)
        if generation is not None and generation.is_guidance(computed):
            return None
        if generation is None or not generation.continues(computed):
            self._close_last()
            generation = Generation(
                self.model, self.options, computed, self.prompts, self.prompt_length
            )
            self.generations.append(generation)
        generation.begin(computed)
        return generation

    def _computed(
        self, arguments: dict[str, Any], generation: Generation | None
    ) -> ComputedColumns:
        """Return the canvas of a forward and the columns that it computes, read from its arguments."""
        ids = arguments.get("input_ids")
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            remedy = "Give the network input_ids: a canvas cannot be read from embeddings."
            raise UsageError("a watched forward has no input_ids (b, s)", remedy)
        ids, past = ids.to(self.model.device), _cache_length(arguments.get("past_key_values"))
        padding = _padding(arguments.get("attention_mask"), len(ids), ids.device)
        if padding is None:
            padding = (
                generation.padding if generation is not None and past else ids.new_zeros(len(ids))
            )
        chosen = None if self.rows is None else self.rows(arguments)
        if chosen is not None:
            rows, order = chosen if isinstance(chosen, tuple) else (chosen, None)
            canvas, fresh = _canvas_of_rows(ids, rows.to(ids.device).bool(), generation)
            order = None if order is None else order.to(ids.device)
            return ComputedColumns(canvas, padding, fresh=fresh, order=order)
        if not past:
            return ComputedColumns(ids, padding)
        if (
            generation is None
            or len(generation.canvas) != len(ids)
            or generation.canvas.shape[1] < past
        ):
            remedy = (
                "Open the session before the prompt is processed, and run one generation at a time."
            )
            raise UsageError(f"{past} positions in the cache were not watched", remedy)
        return _cached_columns(
            ids, padding, arguments.get("position_ids"), generation.canvas[:, :past]
        )


@contextmanager
def _wrapped(net: nn.Module, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of the network by `around` within a `with` block."""
    before, replaced = getattr(net, name), vars(net).get(name)

    @functools.wraps(before)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(before, args, kwargs)

    setattr(net, name, method)
    try:
        yield
    finally:
        delattr(net, name)
        if replaced is not None:
            setattr(net, name, replaced)


def _cache_length(cache: Any) -> int:
    """Return the number of positions in a cache before a forward; 0 if unknown."""
    if getattr(cache, "is_compileable", False):
        remedy = "Use cache_implementation='dynamic'."
        raise UsageError("a fixed-size cache cannot be watched", remedy)
    layers = getattr(cache, "layers", cache)
    if not isinstance(layers, list | tuple) or not layers:
        return 0
    first = layers[0]
    keys = first[0] if isinstance(first, list | tuple) else getattr(first, "keys", None)
    stored = int(keys.shape[-2]) if isinstance(keys, Tensor) and keys.ndim == 4 else 0
    if getattr(first, "is_sliding", False) and first.get_seq_length() > stored:
        positions = f"{stored} of {first.get_seq_length()} positions"
        problem = f"a cache with a sliding window contains only {positions}"
        raise UsageError(problem, "Use texts that fit into the window.")
    return stored


def _padding(mask: Any, b: int, device: torch.device) -> Int[Tensor, " b"] | None:
    """Return the number of left-padded positions of each prompt; None if the mask does not determine it."""
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        return None
    visible = mask.bool() if mask.ndim == 2 else mask_of(mask)[:, 0, -1]
    visible = visible.to(device).expand(b, -1)
    padding = (visible.cumsum(1) == 0).sum(1)
    if bool((visible.sum(1) + padding != visible.shape[1]).any()):
        remedy = "Pad on the left: tokenizer.padding_side = 'left'; in blocks, fill whole blocks."
        raise UsageError("the attention mask has zeros after or between tokens", remedy)
    return padding


def _canvas_of_rows(
    ids: Int[Tensor, "b s"], rows: Bool[Tensor, "#b k"], generation: Generation | None
) -> tuple[Int[Tensor, "b k"], Bool[Tensor, "b k"] | None]:
    """Return the canvas of a forward, and the columns that the forward computes (None: all).

    `ids` are the ids of the whole canvas, or only those of the columns marked in `rows`.
    """
    rows = rows.expand(len(ids), -1)
    counts = rows.sum(1)
    if bool((counts != counts[0]).any()):
        raise UsageError("rows chooses a different number of columns per prompt", "Use one prompt.")
    if ids.shape[1] != rows.shape[1]:
        shape = None if generation is None else generation.canvas.shape
        if generation is None or shape != rows.shape or ids.shape[1] != int(counts[0]):
            problem = (
                f"rows chooses {int(counts[0])} of {rows.shape[1]} columns for {ids.shape[1]} ids"
            )
            raise UsageError(problem, "Return a boolean for each column of the canvas.")
        ids = generation.canvas.masked_scatter(rows, ids)
    return ids, None if bool(rows.all()) else rows


def _cached_columns(
    ids: Tensor, padding: Tensor, positions: Any, before: Tensor
) -> ComputedColumns:
    """Return the canvas of a forward with a cache, and the columns that the forward computes.

    The computed columns are appended after the cached columns `before`, or overwrite some of the cached
    columns.
    """
    q, past = ids.shape[1], before.shape[1]
    if isinstance(positions, Tensor):
        columns = positions.to(ids.device).expand(len(ids), -1) + padding[:, None]  # (b, q)
        if bool((columns < past).all()):  # existing columns are replaced
            fresh = torch.zeros_like(before, dtype=torch.bool).scatter_(1, columns, True)
            return ComputedColumns(before.scatter(1, columns, ids), padding, fresh=fresh)
        if bool((columns != torch.arange(past, past + q, device=ids.device)).any()):
            first, last = int(columns.min()), int(columns.max())
            problem = f"rows at positions {first} to {last} with {past} in the cache"
            raise UsageError(problem, "Specify which columns are computed: watch(..., rows=…).")
    return ComputedColumns(torch.cat([before, ids], dim=1), padding, past)
