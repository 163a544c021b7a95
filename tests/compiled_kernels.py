"""What was stored when the kernels were last compiled, and whether they are still the same. No torch here."""

import hashlib
from pathlib import Path

HERE = Path(__file__).parent
STORE = HERE / "data" / "compiled_kernels.json"
ATTENTION = HERE.parent / "src" / "floatscope" / "attention"


def sources() -> str:
    """A digest of the kernels, of what launches them, and of the script that does so here."""
    files = [*sorted((ATTENTION / "gpu").glob("*.py")), HERE / "compile_kernels.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
