"""No test depends on how busy the machine is: it waits for events, or its clock is controlled."""

from pathlib import Path

import pytest
from short_times import violations

HERE = Path(__file__).parent
SELF = {"waiting.py", Path(__file__).name, "short_times.py"}
FILES = [path for path in sorted(HERE.rglob("*.py")) if path.name not in SELF]


def test_no_test_gives_less_than_a_minute():
    assert len(FILES) > 100
    found = [
        one for path in FILES for one in violations(path.read_text(), str(path.relative_to(HERE)))
    ]
    remedy = "\nWait for an event (waiting.until), or give the code a clock that the test controls."
    assert not found, "\n".join(found) + remedy


@pytest.mark.parametrize(
    "planted",
    [
        "execute(plan, run, patience=2.0)",
        "execute(plan, run, shard_limit=6 * 0.1)",
        "SHORT = 2\ndef test_it():\n    execute(plan, run, patience=SHORT)",
        "Limits(patience=1e9, shard=5); requests.get(url, timeout=59)",
        "server.patience = 0.3",
        "ray_cluster._CHECK_SECONDS, x = 0.5, 2.0",
        "monkeypatch.setattr(host, '_START_SECONDS', 1)",
        "monkeypatch.setattr('floatscope.livepage.host._SECONDS', 1)",
        "def attack(count, patience: float = 1.0): ...",
        "def attack(count, *, deadline=1): ...",
        "command_line('study', '--patience', 5)",
        "words = ['study', '--shard-limit', '5']",
        "words = 'study --patience 5'.split()",
        "words = ['study', '--engine', 'local,patience=5']",
        "run(**{'timeout': 3})",
        "time.sleep(0.1)",
        "await asyncio.sleep(3)",
        "page.wait_for_timeout(100)",
        "page.wait_for_selector('.x', timeout=5000)",
        "expect(page).to_have_title('x', timeout=30_000)",
        "from playwright.sync_api import expect",
        "page.set_default_timeout(5000)",
        "process.wait(10)",
        "thread.join(5)",
        "process.communicate(timeout=30)",
        "CODE = '''\nimport x\nx.run(patience=3)\n'''",
    ],
)
def test_a_short_time_is_found(planted):
    assert len(violations(planted, "planted.py")) == 1


@pytest.mark.parametrize(
    "fine",
    [
        "execute(plan, run, patience=60)",
        "LIMIT = 900\nprocess.wait(LIMIT)",
        "page.set_default_timeout(1000 * 900)",
        "def test_it(hang_clock):\n    execute(plan, run, patience=2.0)",
        "def test_it():\n    execute(plan, run, patience=2.0, clock=lambda: now)",
        "until(lambda: there() or page.wait_for_timeout(10), 'it')",
        "asyncio.sleep(0)",
        "event.wait(); ', '.join(words)",
        "@settings(deadline=None)\ndef test_it(): ...",
        "tab.wait('shown === 1')",
    ],
)
def test_what_a_busy_machine_cannot_exceed_is_allowed(fine):
    assert violations(fine, "fine.py") == []
