"""Store the answers of `floatscope evaluate` until their file is complete, and report what is stored."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from glob import escape as literally
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .. import atomic
from ..registry import placed
from .app import err

if TYPE_CHECKING:
    from ..tasks import Record
    from ..tasks.keeping import Kept


@contextmanager
def keeping(
    save: Path | None,
    given: dict[str, Any],
    records: "tuple[Record, ...]",
    resume: bool,
    overwrite: bool,
) -> "Iterator[Kept | None]":
    """Open a directory beside the file; if the command ends early, print how to continue."""
    if save is None:
        yield None
        return
    from ..engine.plan import fingerprint
    from ..tasks.answer_files import require_free
    from ..tasks.keeping import kept

    fresh = not save.parent.exists()
    require_free(save, overwrite)
    request = {
        **given,
        "plugin": [placed(one) for one in given["plugin"] or []],
        "records": fingerprint([asdict(record) for record in records]),
    }
    folder = save.with_name(f".{save.name}.answers")
    with kept(folder, request, resume=resume, overwrite=overwrite) as keep:
        atomic.sweep(save.parent, literally(save.name))  # what a kill left of the file itself
        if keep.answers:
            err.print(escape(f"resuming: {_there(keep)}"), soft_wrap=True)
        try:
            yield keep
        except KeyboardInterrupt:
            if not keep.answers:
                raise
            go_on = "Run the same command again to continue."
            raise KeyboardInterrupt(f"stopped: {_there(keep)}. {go_on}") from None
        except Exception:
            if keep.answers:
                mended = "after fixing this, the same command continues from there"
                err.print(escape(f"{_there(keep)}: {mended}"), soft_wrap=True)
            raise
        finally:
            for batch, why in keep.redone.items():
                err.print(f"asked again: {escape(batch)}: {escape(why)}", soft_wrap=True)
            if not keep.answers:
                keep.remove()
                if fresh:
                    with suppress(OSError):  # something is in it
                        save.parent.rmdir()


def _there(keep: "Kept") -> str:
    return f"{keep.answers} answers are stored in {keep.run.directory}"
