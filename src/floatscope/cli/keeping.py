"""Store the answers of `floatscope evaluate` until the output file is complete.

Messages say how many answers are stored, and how to continue after an interruption.
"""

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
    from ..tasks.keeping import AnswerStore


@contextmanager
def keeping(
    save: Path | None,
    options: dict[str, Any],
    records: "tuple[Record, ...]",
    resume: bool,
    overwrite: bool,
) -> "Iterator[AnswerStore | None]":
    """Open the directory of stored answers next to the file `save`; yield None if `save` is None.

    If the command ends early, a message says how to continue. A directory without answers is removed at the
    end.
    """
    if save is None:
        yield None
        return
    from ..engine.plan import fingerprint
    from ..tasks.answer_files import require_free
    from ..tasks.keeping import open_answers

    is_new_folder = not save.parent.exists()
    require_free(save, overwrite)
    request = {
        **options,
        "plugin": [placed(name) for name in options["plugin"] or []],
        "records": fingerprint([asdict(record) for record in records]),
    }
    folder = save.with_name(f".{save.name}.answers")
    with open_answers(folder, request, resume=resume, overwrite=overwrite) as keep:
        atomic.sweep(save.parent, literally(save.name))  # partial files of a killed command
        if keep.answers:
            err.print(escape(f"resuming: {_stored_count(keep)}"), soft_wrap=True)
        try:
            yield keep
        except KeyboardInterrupt:
            if not keep.answers:
                raise
            go_on = "Run the same command again to continue."
            raise KeyboardInterrupt(f"stopped: {_stored_count(keep)}. {go_on}") from None
        except Exception:
            if keep.answers:
                advice = "after fixing this, the same command continues from there"
                err.print(escape(f"{_stored_count(keep)}: {advice}"), soft_wrap=True)
            raise
        finally:
            for batch, why in keep.redone.items():
                err.print(f"asked again: {escape(batch)}: {escape(why)}", soft_wrap=True)
            if not keep.answers:
                keep.remove()
                if is_new_folder:
                    with suppress(OSError):  # something is in it
                        save.parent.rmdir()


def _stored_count(keep: "AnswerStore") -> str:
    return f"{keep.answers} answers are stored in {keep.run.directory}"
