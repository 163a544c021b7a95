"""Requests that want to hurt the live page; seeded, in full: python -m tests.attacks.hostile_live."""

import hostile_live


def test_a_thousand_seeded_requests(llada):
    outcomes, failures = hostile_live.attack(llada, 1000)
    assert not failures
    assert {200, 400, 403, 404, 405, 413, 415, "done", "error", "opened"} == outcomes.keys()
    assert hostile_live.request(7, "k", 1) == hostile_live.request(7, "k", 1)
