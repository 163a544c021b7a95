"""Is a table sound LaTeX? No LaTeX runs in the tests."""

import re


def assert_sound(source):
    """What LaTeX would complain of, as far as it can be told without it: braces, environments, columns."""
    bare = re.sub(r"\\.", "", source)
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0
    begun, ended = (re.findall(rf"\\{word}{{(.+?)}}", source) for word in ("begin", "end"))
    assert begun == ended[::-1]
    columns = len(re.sub(r"p{.*?}", "p", re.search(r"begin{tabular}{(.*)}\n", source)[1]))
    body = source[source.index(r"\toprule") : source.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    spans = [int(x) - 1 for x in re.findall(r"multicolumn{(\d+)}", body)]
    cells = sum(len(re.split(r"(?<!\\)&", row)) for row in rows)
    assert rows and cells + sum(spans) == columns * len(rows)
    assert not any(row.startswith(("[", "*")) for row in rows)
    assert r"\caption{" in source and r"\label{tab:" in source and r"\midrule" in source
