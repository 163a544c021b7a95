"""Define and validate the request of a run: its studies, models, data and settings.

Command-line options, files (TOML, YAML or JSON) and run.json have the same fields.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ..errors import UsageError
from ..models.spec import ModelSpec
from ..tasks.conditions import Condition
from ..tasks.named import asks
from ..tasks.record import Asks
from ..untrusted import LIMIT, Unreadable, parse, read_bytes, require_modest

_DOTS = 200  # in a line: a parser's time grows with the square of a key's parts
_WRITTEN = 100_000  # bytes of a .toml or .yaml file, which a person writes
_MOST, _PARTS = 2**31 - 1, 100
Count = Annotated[int, Field(ge=1, le=_MOST)]
Several = Annotated[int, Field(ge=2, le=_MOST)]  # with an interval over them
AUTO = "auto"


class Request(BaseModel):
    """A request for a run. Every field except `extra_runs` is also an option of `floatscope study`.

    Args:
        studies (tuple of str): Names of the studies, 1 to 100.
        models (tuple of str): Model specs, such as "pair/mdm" or "ours=DIR,family=Llama"; in a request
            file also tables, `[[models]]`.
        data (str): Name of a task or path of a file of records; "world:nine" by default.
        limit (int): Number of examples that are traced; 24 by default.
        questions (int): Number of questions asked in each setting; 40 by default.
        gain_questions (int): Number of questions in the two settings of claim 7, without and with passages;
            by default `questions`.
        side_questions (int): Number of questions in settings that decide no claim; by default `questions`.
        asked_as (str): Condition under which questions are asked; "as-is" by default.
        traced_as (str): Condition under which examples are traced; "as-is" by default.
        length (int): Number of masks, or of tokens to generate; 16 by default.
        steps (int): Number of decoding steps; by default that of the sampler.
        sampler (str): Sampler with its settings, such as "confidence,temperature=0.7"; "confidence" by
            default.
        frequencies (str): A .npy file with the share of each token id in a corpus; None by default.
        heads (int): Number of strongest retrieval heads that the study `ablation` removes; by default its
            own choice.
        template (str): "auto" (by default), "plain" or "world".
        chat (bool): Whether prompts are wrapped in the model's chat template; by default if the model has
            a chat template.
        controls (int): Number of untrained controls of every model, 0 to 100; 5 by default. A control has
            permuted weights and attention as sharp as the trained model's.
        view (int): Number of examples that the viewer shows; 6 by default.
        keep_traces (bool): Store the complete traces of the examples in the viewer in the run's folder
            `traces`; False by default.
        shard (int): Number of examples in a shard; 8 by default.
        batch_size (int): Number of questions decoded together; 8 by default.
        batch (int): Number of examples traced together. None (by default) or "auto": as many as fit on a
            GPU, one on a CPU.
        seed (int): Seed of all random choices; 0 by default.
        skip (int): Number of records to skip at the start of the data; 0 by default.
        device (str): Device of the models, such as "cuda" or "cpu"; by default a GPU if there is one.
        dtype (str): Number format of the weights; "auto" (by default) is bfloat16 on a GPU and float32 on a
            CPU.
        threads (int): Threads of a model on a CPU, 1 to 1024, for any number of workers; 1 by default.
            Measures use the remaining cores.
        skip_bad (bool): Leave out records that cannot be used and list them; False by default.
        split_alternatives (bool): Accept each part of a gold answer like "a or b" as right too; False by
            default.
        chosen_on (str): Name of other data on which these settings were chosen; "" by default.
        plugins (tuple of str): Modules or .py files that every worker imports first; () by default.
        extra_runs (tuple of Request): Further runs in the same directory; each gives only the fields that
            differ.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    studies: tuple[str, ...] = Field(min_length=1, max_length=100)
    # Each in the form of ModelSpec; in a request file also as a table, `[[models]]`.
    models: tuple[str, ...] = Field(min_length=1, max_length=100)
    data: str = "world:nine"
    limit: Several = 24  # examples traced
    questions: Several = 40  # questions asked in each setting
    gain_questions: Several | None = None  # … without and with passages, for claim 7
    side_questions: Several | None = None  # … in settings that decide no claim
    asked_as: str = "as-is"  # the condition under which questions are asked
    traced_as: str = "as-is"  # the condition under which they are traced
    length: Count = 16  # masks, or tokens to generate
    steps: Count | None = None
    sampler: str = "confidence"  # or with fields: "confidence,temperature=0.7"
    frequencies: str | None = None
    heads: Count | None = None  # strongest retrieval heads that `ablation` removes
    template: str = "auto"
    chat: bool | None = None
    # Untrained controls of every model: permuted weights, made as sharp as the trained ones.
    controls: int = Field(5, ge=0, le=100)
    view: int = Field(6, ge=0, le=_MOST)  # examples that the viewer shows
    keep_traces: bool = False  # complete traces of those examples, in the run's folder `traces`
    shard: Count = 8  # examples in a shard
    batch_size: Count = 8  # questions decoded together
    # Examples traced together; None, or "auto": as many as fit on a GPU, one on a CPU.
    batch: Count | None = None
    seed: int = Field(0, ge=-(2**62), le=2**62)
    # records to skip at the start of the data
    skip: int = Field(0, ge=0, le=_MOST)
    device: str | None = None
    dtype: str = "auto"
    # of a model on a CPU, whatever the number of workers; measures use the remaining cores
    threads: int = Field(1, ge=1, le=1024)
    skip_bad: bool = False
    split_alternatives: bool = False  # accept both parts of a gold answer like "a or b" in a file
    chosen_on: str = Field("", max_length=1000)  # other data, on which these settings were chosen
    # Modules or .py files that a worker imports first.
    plugins: tuple[str, ...] = Field((), max_length=100)
    # Runs in the same directory: each differs in the fields that it names.
    extra_runs: tuple["Request", ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, as stored in run.json and in the keys of shards."""
        return self.model_dump(mode="json", exclude={"extra_runs": {"__all__": {"extra_runs"}}})

    @property
    def asks(self) -> Asks:
        """The kind of answer that the data ask for, such as a continuation."""
        return asks(self.data)

    @property
    def control_seeds(self) -> tuple[int, ...]:
        """Seeds of the untrained controls: `seed` and the integers after it."""
        return tuple(range(self.seed, self.seed + self.controls))

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Add to each extra run the fields of the main run that the extra run does not set."""
        _, *parts = parts_of(fields)
        inherited = {key: value for key, value in fields.items() if key != "extra_runs"}
        return inherited | (
            {"extra_runs": tuple({**inherited, **part} for part in parts)} if parts else {}
        )

    @field_validator("batch", mode="before")
    @classmethod
    def _auto(cls, value: Any) -> Any:
        if isinstance(value, str) and value != AUTO and not value.isdigit():
            raise ValueError(f"expected a number of examples or {AUTO!r}, got {value!r}")
        return None if value == AUTO else value

    @field_validator("models", mode="before")
    @classmethod
    def _specs(cls, value: Any) -> Any:
        """Return models with tables turned into text, so that shards, messages and commands use one form."""
        if not isinstance(value, list | tuple):
            return value
        try:
            return tuple(
                spec if isinstance(spec, str) else ModelSpec.from_value(spec).text for spec in value
            )
        except UsageError as error:
            raise ValueError(str(error)) from error

    @field_validator("models")
    @classmethod
    def _require_unique(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            specs = [ModelSpec.parse(text) for text in value]
        except UsageError as error:
            raise ValueError(str(error)) from error
        named = [spec.name for spec in specs if spec.name]
        if len(set(value)) < len(value) or len(set(named)) < len(named):
            raise ValueError("a model is named twice")
        return value

    @field_validator("asked_as", "traced_as")
    @classmethod
    def _condition(cls, value: str) -> str:
        return Condition.parse(value).name


def parts_of(fields: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the fields of a request, then the fields of each of its extra runs; refuse malformed ones."""
    parts = fields.get("extra_runs") or ()
    if not isinstance(parts, list | tuple) or not all(isinstance(p, dict) for p in parts):
        raise UsageError(
            "extra_runs is not a list of tables",
            "Write one table per run, with the fields that differ.",
        )
    if any("extra_runs" in part for part in parts):
        raise UsageError(
            "extra_runs: an extra run cannot have extra runs of its own",
            "List all runs at the top level.",
        )
    if len(parts) > _PARTS:
        raise UsageError(f"extra_runs lists {len(parts):,} runs", f"List at most {_PARTS}.")
    return (fields, *parts)


def request_of(fields: dict[str, Any], where: str = "") -> Request:
    """Create a request from its fields, and validate them.

    Args:
        fields (dict): The fields of `Request`.
        where (str): Name of the file of the fields, for messages; "" by default.

    Raises:
        UsageError: If a field is unknown or wrong.
    """
    try:
        return Request.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the request"
        names = ", ".join(Request.model_fields)
        message = first["msg"].removeprefix("Value error, ")
        raise UsageError(
            f"{where + ': ' if where else ''}{name:.120}: {message:.500}",
            f"A run has these fields: {names}."
            if first["type"] == "extra_forbidden"
            else "Correct this field.",
        ) from error


def _parse_yaml(raw: bytes) -> Any:
    """Parse YAML; refuse merge keys, because nested merges can take unbounded time."""
    import yaml

    class Loader(yaml.SafeLoader):
        def flatten_mapping(self, node: Any) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise Unreadable("contains a merge key (<<)")

    return yaml.load(raw.decode("utf-8"), Loader)


def read_request(path: Path) -> dict[str, Any]:
    """Read the fields of a request from a file, without validating them.

    Args:
        path (Path): A .toml, .yaml, .yml or .json file.

    Returns:
        The fields of the request; `request_of` validates them.
    """
    if path.suffix not in (".toml", ".yaml", ".yml", ".json"):
        raise UsageError(
            f"expected a .toml, .yaml or .json file, got {path}", "Rename or convert it."
        )
    try:
        raw = read_bytes(path, LIMIT if path.suffix == ".json" else _WRITTEN)
        if path.suffix == ".toml":
            if any(line.count(b".") > _DOTS for line in raw.splitlines()):
                raise Unreadable(f"has a line with more than {_DOTS} dots")
            fields: Any = tomllib.loads(raw.decode("utf-8"))
        elif path.suffix == ".json":
            fields = parse(raw)
        else:
            fields = _parse_yaml(raw)
        require_modest(fields, len(raw))
    except Exception as error:  # each of the three parsers has its own
        raise UsageError(f"{path} cannot be read: {error}"[:500], "Correct the file.") from error
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise UsageError(f"{path} contains no fields", "Write `models: [...]` and so on.")
    return fields
