"""Base classes of interventions: settings that can be put in force on a model and removed again.

Each `with` block creates an `ActiveIntervention`, which changes the model while the block runs. The
decoding loop notifies the ActiveIntervention of each step, and the attention hook passes it every
attention call. Several interventions can be in force together. The intervention listed first in Combined
acts first: it sees the call before the other interventions and the output after them.
"""

from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..decode.state import Edit, State, notify_edits, prepared
from ..errors import ModelError, UsageError
from ..models import Model, attention_hook
from ..models.select import Choice, chosen, within
from ..registry import INTERVENTIONS, Configured, Registry, described
from ..sequences.prompt import Encoded

_PROBE = 24  # tokens of the random text on which an intervention must have an effect


class ActiveIntervention(Edit):
    """An intervention in force on one model. `state` is None except during the forwards of a decoding."""

    def __init__(self, model: Model, layers: Choice = None, steps: Choice = None) -> None:
        self.model = model
        self.layers = frozenset(chosen(layers, model.n_layers, "layer"))
        self.steps = steps
        self.state: State | None = None

    @contextmanager
    def forward(self, state: State) -> Iterator[None]:
        """Set `state` and call `begin` for one forward; restore the earlier `state` after the forward."""
        before, self.state = self.state, state
        self.begin(state)
        try:
            yield
        finally:
            self.state = before

    def begin(self, state: State) -> None:
        """Prepare for a forward that is about to run."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hold hooks other than the attention hook in the model while the intervention is in force."""
        yield

    def acts(self, layer: int) -> bool:
        """Tell whether the intervention applies to this layer at the current step."""
        step = 0 if self.state is None else self.state.step
        return layer in self.layers and within(self.steps, step, "step")

    def same_forward(self, state: State) -> Hashable | None:
        """Return () for every forward if the intervention uses no hook, else None."""
        kind = type(self)
        idle = (
            kind.attention is ActiveIntervention.attention
            and kind.installed is ActiveIntervention.installed
        )
        return () if idle else None

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        """Return a layer's attention output from `proceed`; subclasses change the call or the output."""
        return proceed(call)


@dataclass(frozen=True)
class Intervention(Configured):
    """Base class of interventions. `with intervention(model): …` puts an intervention in force on a model.

    Example:
        ```python
        with fs.interventions.MaskTokens(regions="question")(model):
            decoding = model.generate(prompt)
        ```
    """

    registry: ClassVar["Registry[type[Intervention]]"] = INTERVENTIONS

    @contextmanager
    def __call__(self, model: Model) -> Iterator[Model]:
        self.check(model)
        if not model.on_one_device:
            raise UsageError(
                f"{model.name} is on several devices, where interventions are not supported",
                "Load it on one device.",
            )
        with ExitStack() as stack:
            # Wait for decodings in other threads; afterwards the intervention is in force in all threads.
            with attention_hook.lock_network(model.net):
                with _suspended(model):
                    self.prove(model)
                stack.enter_context(self.in_force(model))
            try:
                yield model
            finally:
                with attention_hook.lock_network(model.net):
                    stack.close()

    @property
    def adds(self) -> int:
        """Number of tokens that the intervention puts before every prompt."""
        return 0

    def check(self, model: Model) -> None:
        """Raise an error for settings that cannot work with this model, before anything runs.

        Args:
            model (Model): the model on which to put the intervention in force.
        """

    def acting(self, model: Model) -> ActiveIntervention:
        """Create the object that changes the model during one `with` block.

        Args:
            model (Model): the model to act on.
        """
        raise TypeError(f"{type(self).__name__} must define acting")

    def probe(self) -> "Intervention":
        """Return a version of the intervention that must change the logits of any text, for `prove`."""
        return self

    @contextmanager
    def in_force(self, model: Model) -> Iterator[None]:
        """Put the intervention in force while a `with` block runs, without the checks that a call makes.

        Args:
            model (Model): the model to act on.
        """
        acting = self.acting(model)
        acting.described = self.describe()
        model.edits.insert(0, acting)
        try:
            with attention_hook.attach(model.net, acting.attention), acting.installed():
                yield
        finally:
            model.edits.remove(acting)

    def prove(self, model: Model) -> None:
        """Raise ModelError unless the intervention changes the predictions for a random text.

        Args:
            model (Model): the model on which to try the intervention.
        """
        before = _predictions(model)
        with self.probe().in_force(model):
            after = _predictions(model)
        if torch.equal(before, after):
            raise ModelError(
                f"{self.describe()} does not change the logits of {model.name}",
                "Its layers and heads may have no effect in this model, or the family is not supported.",
            )

    def describe(self) -> str:
        """Return the intervention as a Python call, with the settings that differ from their defaults."""
        return described(self)


@dataclass(frozen=True)
class Combined(Intervention):
    """Apply several interventions at once; each sees the changes of the interventions listed before it.

    Args:
        parts: interventions, in the order in which they act; at least one.
    """

    parts: tuple[Intervention, ...] = ()

    @property
    def adds(self) -> int:
        return sum(part.adds for part in self.parts)

    def check(self, model: Model) -> None:
        if not self.parts:
            raise UsageError("Combined() has no interventions", "Give at least one intervention.")
        for part in self.parts:
            part.check(model)

    def prove(self, model: Model) -> None:
        for part in self.parts:
            part.prove(model)

    @contextmanager
    def in_force(self, model: Model) -> Iterator[None]:
        with ExitStack() as stack:
            for part in reversed(self.parts):  # the last one attached is called first
                stack.enter_context(part.in_force(model))
            yield

    def describe(self) -> str:
        return " + ".join(part.describe() for part in self.parts)


@contextmanager
def _suspended(model: Model) -> Iterator[None]:
    """Suspend the interventions in force while the `with` block runs the model on a random text."""
    before, model.edits = model.edits, []
    try:
        with attention_hook.suspend(model.net):
            yield
    finally:
        model.edits = before


def probe_text(model: Model) -> Encoded:
    """Return a random text of 24 tokens as a prompt, the same for every intervention."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.vocab_size, (_PROBE,), generator=generator).tolist()
    return Encoded(tuple(ids), ("prompt", "rest") * (_PROBE // 2))


@torch.inference_mode()
def _predictions(model: Model) -> Tensor:
    """Return the logits of the last four rows of a random text, computed in the same way as in decoding."""
    prompt = prepared(model, probe_text(model))
    answer = [] if model.mask_id is None else [model.mask_id] * 4
    canvas = torch.tensor([[*prompt.ids, *answer]], device=model.device)
    size = canvas.shape[1]
    state = State.build(model, [prompt], canvas, (size - 4, size), prompt_end=len(prompt.ids))
    rows = torch.arange(size - 4, size, device=model.device)
    with notify_edits(model, state):
        return model.forward(canvas, rows, state.visible)
