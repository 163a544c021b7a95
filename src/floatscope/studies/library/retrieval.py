"""Study which heads copy the answer from the gold passage."""

from collections.abc import Iterator
from typing import ClassVar

from ...measures import RetrievalHeads
from ...measures.base import Measure
from ..evidence import Evidence
from ..long_answers import no_passages
from ..request import Request
from ..study import Shows, Study


class Retrieval(Study):
    """The study `retrieval`: the heads that copy the answer. This study decides no claim."""

    name = "retrieval"
    question = "Which heads copy the answer from the gold passage?"
    method = """\
strict copy score (2404.15574): when an answer token w is revealed, a hit if the head's strongest key lies
in the gold passage and holds w; score = distinct gold tokens hit / those there to hit; a head counts from 0.1
evidence lift: mean mass of the answer's rows on the gold passage / its null
Null of the count: heads whose strongest key is drawn at random from what the row sees."""

    shows: ClassVar[Shows] = {
        "retrieval-heads": (
            "Heads that copy",
            "Left: strict copy score of every head by layer. Right: evidence lift of every head.",
        ),
    }

    def measures(self, request: Request) -> dict[str, Measure]:
        return {"retrieval-heads": RetrievalHeads()}

    def findings(self, evidence: Evidence) -> Iterator[str]:
        if why := no_passages(evidence.request):
            yield why
            return
        for model, result in evidence.results("retrieval-heads").items():
            data = result.data
            if not data["copy"].notnull().any():
                yield f"{model}: nothing to copy, {data.attrs['copy']}."
                continue
            heads, low, high, null = (
                float(data[f"heads{end}"].item()) for end in ("", "_low", "_high", "_null")
            )
            total = int(data.sizes["layer"] * data.sizes["head"])
            best = data["copy"].argmax(...)
            where = {k: int(data[k].values[int(v)]) for k, v in best.items()}
            yield (
                f"{model}: {heads:.0f} [{low:.0f}, {high:.0f}] of {total} heads copy (by chance "
                f"{null:.2g}); the strongest is layer {where['layer']}, head {where['head']} with a "
                f"score of {float(data['copy'].max()):.2f}."
            )
