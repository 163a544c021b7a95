"""The commands `floatscope study`, `studies` and `demo`: run studies into a directory, or list studies."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..engine.hardware import usable_cores
from ..errors import UsageError, did_you_mean
from ..registry import STUDIES
from .app import Plugins, app, err, out, output_option
from .engines import engine_of
from .progress import Display

if TYPE_CHECKING:
    from ..engine import Event, RunProgress
    from ..studies import Findings, Request

_MARK = {"holds": "[green]✓[/]", "refuted": "[red]✗[/]", "undecided": "[yellow]≈[/]"}
Out = Annotated[
    Path,
    output_option("--out", help="The run's directory; created if it does not exist."),
]
Engine = Annotated[
    str,
    typer.Option(
        help="local, or ray for several machines: ray,address=HEAD:6379,gpus=0.5 (a running cluster; "
        "GPUs per worker). Both take patience=120 (seconds without a sign of life, then a worker is "
        "replaced) and shard_limit=21600 (seconds for a shard)."
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes. Default: one per GPU, or per CPU core.")
]
Resume = Annotated[bool, typer.Option(help="Continue the existing run.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the existing run.")]
RegistrationFile = Annotated[
    Path | None,
    typer.Option(
        "--registration",
        help="A registration written earlier, with which the request must agree.",
    ),
]
RegisterOnly = Annotated[
    Path | None,
    output_option(
        "--register-only",
        help="Write the registration here and run nothing.",
    ),
]


@app.command()
def studies(plugin: Plugins = None) -> None:
    """List the studies, their claims, and the rules that decide them."""
    table = Table(title="Studies", title_justify="left")
    table.add_column("study")
    table.add_column("question")
    table.add_column("decides claims")
    for name, study in STUDIES.items():
        called = f"{name} (by name)" if study.by_name else name
        table.add_row(called, study.question, ", ".join(map(str, study.decides)) or "–")
    out.print(table)
    named = next((name for name, study in STUDIES.items() if study.by_name), "NAME")
    out.print(f"By name: run only if it is named (`floatscope study {named} …`).")
    rules = Table(
        title="Claims, as they are registered before a run", title_justify="left", show_lines=True
    )
    rules.add_column("#", justify="right")
    rules.add_column("claim, and the rule that decides it")
    for study in STUDIES.values():
        for rule in study.rules:
            rules.add_row(str(rule.number), f"[bold]{escape(rule.text)}[/]\n{escape(rule.words())}")
    out.print(rules)


@app.command()
def study(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Which studies; see `studies`. Default: all but those run by name."),
    ] = None,
    out_dir: Out = Path("run"),
    config: Annotated[
        Path | None,
        typer.Option(help="A .toml, .yaml or .json file, or a run.json; options override it."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A name, directory or hub id, or ours=DIR,family=Llama,mask_id=4; may be repeated."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A file of questions, world:nine, or long:continuation.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=2, help="Examples to trace.")] = None,
    questions: Annotated[
        int | None, typer.Option(min=2, help="Questions to ask in each setting.")
    ] = None,
    asked_as: Annotated[
        str | None, typer.Option(help="Condition under which questions are asked: passages=5 …")
    ] = None,
    traced_as: Annotated[
        str | None, typer.Option(help="Condition under which examples are traced.")
    ] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Masks, or tokens to generate.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Default: one per token.")] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            help="For diffusion models, as `confidence` or `confidence,temperature=0.7`; "
            "a temperature also applies to causal models."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Another field of the run, as batch=8, or of one study, as ablation.heads=10: see "
            "docs/reference/studies.md; may be repeated.",
        ),
    ] = None,
    controls: Annotated[
        int | None,
        typer.Option(min=0, help="Untrained controls of each model (permuted weights); 0: none."),
    ] = None,
    view: Annotated[int | None, typer.Option(min=0, help="Examples the viewer shows.")] = None,
    keep_traces: Annotated[
        bool | None, typer.Option(help="Store complete traces of those examples, in OUT/traces.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random choices.")] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            min=0, help="Skip the first records, such as those on which settings were chosen."
        ),
    ] = None,
    chat: Annotated[bool | None, typer.Option(help="Use chat templates.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda …")] = None,
    skip_bad: Annotated[
        bool | None, typer.Option(help="Leave out what cannot be read or asked; list it.")
    ] = None,
    split_alternatives: Annotated[
        bool | None,
        typer.Option(help="Accept each part of a file's gold answers like `a or b` as right too."),
    ] = None,
    registration: RegistrationFile = None,
    register_only: RegisterOnly = None,
    engine: Engine = "local",
    workers: Workers = None,
    resume: Resume = True,
    overwrite: Overwrite = False,
    plugin: Plugins = None,
) -> None:
    """Run studies of several models, and write a report.

    Every number has a null and an interval.

    \b
    Examples:
      floatscope study floating knowledge --model ./LLaDA-8B-Instruct \\
          --model ./Llama-3.1-8B --data nq.jsonl.gz --asked-as passages=5 \\
          --length 32 --out run
      floatscope study --config study.toml --out run --engine ray
      floatscope study --config run/run.json --out again   # the same once more
      floatscope study --config study.toml --register-only plan.json
      floatscope study --config study.toml --registration plan.json --out run
    """
    from ..registry import placed
    from .early import spec_of
    from .inputs import common_settings

    engine_name, engine_options = engine_of(engine)
    for spec in model or []:
        spec_of(spec, elsewhere=engine_name != "local")
    for name in names or []:
        STUDIES.require(name)
    from ..studies import Request, read_request, request_of
    from ..studies.provenance import is_run, repeated, without_plugins
    from ..studies.study import by_default

    # Flags have the names of the request's fields.
    settings = {name: value for name, value in locals().items() if name in Request.model_fields}
    settings |= {
        "studies": names,
        "models": model,
        "plugins": [placed(name) for name in plugin or []],
    }
    if sampler:
        (settings["sampler"],), shared = common_settings(
            [sampler], {"length": length, "steps": steps}
        )
        settings |= shared
    flags = {**settings, "engine": engine}
    settings = {key: value for key, value in settings.items() if value not in (None, [])}
    settings |= settings_of(option or [], flags)
    fields: dict[str, Any] = read_request(config) if config else {}
    folder = Path()
    if config and is_run(fields):
        fields, folder = repeated(fields, config, settings)
    elif config:
        fields = without_plugins(fields, settings, config)
    fields |= settings
    fields.setdefault("studies", list(by_default()))
    if "models" not in fields:
        raise UsageError("no model", "Name some with --model, or in the --config file.")
    request = request_of(fields, str(config or ""))
    if register_only:
        _register(request, register_only)
        return
    _run(
        request,
        out_dir,
        engine_name,
        workers,
        folder=folder,
        registration=registration,
        **engine_options,
        resume=resume,
        overwrite=overwrite,
    )


@app.command()
def demo(
    out_dir: Out = Path("demo"),
    engine: Engine = "local",
    workers: Workers = None,
    resume: Resume = True,
    overwrite: Overwrite = False,
    registration: RegistrationFile = None,
    register_only: RegisterOnly = None,
) -> None:
    """Run almost all studies on the embedded pair and its twin.

    Studies that run only by name are left out. It needs no GPU and takes a few minutes.
    """
    from ..studies.demo import demo_request

    request, left_out = demo_request()
    if left_out:
        err.print(escape(left_out), soft_wrap=True)
    if register_only:
        _register(request, register_only)
        return
    going = {"resume": resume, "overwrite": overwrite, "registration": registration}
    engine_name, engine_options = engine_of(engine)
    _run(request, out_dir, engine_name, workers, **engine_options, **going)
    page = escape(str(out_dir / "report.html"))
    out.print(f"Open {page}, and ask the models yourself: floatscope live --open", soft_wrap=True)


def settings_of(options: list[str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that `--set` gives: fields of a run without an option, and fields of single studies.

    `flags` contains the names of the fields that have an option.
    """
    from ..studies import Request

    settings: dict[str, Any] = {}
    study_of_field = {field: name for name, study in STUDIES.items() for field in study.options}
    free = [
        f
        for f in Request.model_fields
        if f not in {*flags, *study_of_field, "extra_runs", "plugins"}
    ]
    for text in options:
        key, _, value = text.partition("=")
        name, dot, field = key.strip().rpartition(".")
        if dot:
            STUDIES.require(name)
        choices = (
            [option for option, owner in study_of_field.items() if owner == name] if dot else free
        )
        if field not in choices or not value:
            guess = did_you_mean(field, choices)
            if field in study_of_field:
                guess = f"Write {study_of_field[field]}.{field}={value or 'VALUE'}."
            elif field in flags:
                guess = f"Write --{field.replace('_', '-')}."
            listed = ", ".join(
                [*choices, *([] if dot else (f"{s}.{f}" for f, s in study_of_field.items()))]
            )
            raise UsageError(f"--set {text:.100}", guess or f"There are: {listed or 'none'}.")
        settings[field] = value
    return settings


def _register(request: "Request", path: Path) -> None:
    """Write the registration of a run to a file, without running it."""
    from hashlib import sha256

    from .. import atomic
    from ..studies.registration import registration_of

    data = registration_of(request).encode()
    atomic.make_folder(path.parent)
    atomic.write(path, data)
    out.print(f"{escape(str(path))}: sha256 {sha256(data).hexdigest()}", soft_wrap=True)


def _run(request: "Request", directory: Path, *how: Any, **options: Any) -> None:
    """Run studies and write the report; an interruption is raised again with how to continue."""
    try:
        _run_and_report(request, directory, *how, **options)
    except KeyboardInterrupt as interrupt:
        message = (
            f"stopped: what is stored in {directory} is safe. Run it again with --resume, and "
            "without --overwrite, to continue."
        )
        raise KeyboardInterrupt(str(interrupt) or message) from None


def _run_and_report(
    request: "Request",
    directory: Path,
    engine: str,
    workers: int | None,
    gpus: float | None = None,
    folder: Path = Path(),
    **options: Any,
) -> None:
    from ..studies.early import require_models

    if not (directory / "manifest.json").exists():
        require_models(request, elsewhere=engine != "local", folder=folder)
    from ..report.build import described, write_report
    from ..studies.run import run

    if engine == "ray" and (request.device or "").startswith("cuda:"):
        raise UsageError(
            f"--device {request.device} with Ray, which assigns a GPU to each worker",
            "Use --device cuda.",
        )
    if gpus is not None and gpus > 1 and gpus % 1:
        raise UsageError(f"gpus={gpus:g}", "A worker takes whole GPUs, or a part of one: 0.5.")
    if gpus is None and request.device == "cpu":
        gpus = 0
    count = workers or _default_workers(request.device)
    with Display("starting", "shards") as display:

        def show(state: "RunProgress") -> None:
            display.update(
                "running",
                completed=state.completed,
                total=state.total,
                running=state.fractions,
                seconds_left=state.seconds_left,
            )

        def tell(event: "Event") -> None:
            """Print why a worker was replaced, or what the run is waiting for."""
            if event["event"] in ("lost", "waiting"):
                lost = f"shard {event['shard']} was lost: " if "shard" in event else ""
                err.print(escape(f"{lost}{event['why']}"), soft_wrap=True)

        summary, findings = run(
            request,
            directory,
            folder=folder,
            engine=engine,
            workers=count,
            gpus=gpus,
            progress=show,
            on_event=tell,
            **options,
        )
        display.update("writing the report")
        page = write_report(findings)
    _print(findings)
    for shard, why in summary.redone.items():
        err.print(f"redone: {escape(shard)}: {escape(why)}")
    if summary.left_out:
        err.print(f"left out {len(summary.left_out)}:")
        for record in summary.left_out[:20]:
            err.print(f"  {escape(described(record))}", soft_wrap=True)
    for part in (findings, *findings.extra_runs):
        for note in part.notes:
            kind = "[bold]warning:[/]" if note in part.warnings else "note:"
            err.print(f"{kind} {escape(note)}", soft_wrap=True)
    out.print(
        f"{summary.computed} shards computed, {summary.reused} already stored; {summary.seconds:.0f} s"
    )
    out.print(f"[bold]{escape(str(page))}[/]")


def _default_workers(device: str | None) -> int:
    """Return the default number of workers: the number of visible GPUs, or of CPU cores without a GPU."""
    if device is None or device.startswith("cuda"):
        import torch

        if device is not None or torch.cuda.is_available():
            return 1 if ":" in (device or "") else max(1, torch.cuda.device_count())
    return usable_cores()


def _print(findings: "Findings") -> None:
    if findings.answer:
        out.print(f"\n[bold]{escape(findings.answer)}[/]\n")
    table = Table(title="What was found", title_justify="left", show_lines=True)
    table.add_column("#", justify="right")
    table.add_column("claim, and what the numbers say about these models")
    table.add_column("", justify="center")
    for claim in findings.verdicts:
        details = [claim.plain, claim.scope and f"({claim.scope})", claim.why]
        lines = [f"[bold]{escape(claim.text)}[/]", *map(escape, details)]
        text = "\n".join(line for line in lines if line)
        mark = f"{_MARK.get(claim.verdict, '')} {claim.verdict}"
        table.add_row(str(claim.number), text, mark)
    out.print(table)
