"""Open a browser at an address that holds a key.

Every user of a machine can read the command lines of its processes. The browser is therefore given a file
that only this user can read, and the file redirects to the address.
"""

import html
import os
import webbrowser
from pathlib import Path

from .scratch import REDIRECT

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={url}">
<title>Floatscope live</title>
</head>
<body><p><a href="{url}">Floatscope live</a></p></body>
</html>
"""


def open_browser(url: str, folder: Path) -> None:
    """Open the address through a file in a private folder."""
    file = folder / REDIRECT
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="utf-8") as out:
        out.write(_PAGE.format(url=html.escape(url)))
    webbrowser.open(file.as_uri())
