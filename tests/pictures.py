"""Is there something in a saved picture?"""

from xml.etree import ElementTree

import matplotlib.image

MARKS = ("line2d", "patch", "quadmesh", "image", "poly", "pathcollection", "linecollection")


def assert_drawn(file):
    """A whole file of its kind, with axes and marks in them; pixels that are not all alike."""
    if file.suffix == ".png":
        assert matplotlib.image.imread(file).std() > 0.01
    elif file.suffix == ".pdf":
        data = file.read_bytes()
        assert data.startswith(b"%PDF-") and data.rstrip().endswith(b"%%EOF")
        assert data.count(b"/Type /Page ") == 1
    else:
        axes = [e for e in ElementTree.parse(file).iter() if e.get("id", "").startswith("axes_")]
        marks = [e.get("id", "").lower() for one in axes for e in one.iter()]
        assert axes and any(name.startswith(MARKS) for name in marks)
