"""Modules in a directory that somebody sent are not imported by the processes that are started there."""

import pytest
from working_directory import attack


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return attack(
        tmp_path_factory.mktemp("scratch"), chosen=("study --config gift/run.json", "live")
    )


@pytest.mark.parametrize("command", ["study --config gift/run.json", "live"])
def test_a_command_works_beside_hostile_modules_and_imports_none(outcomes, command):
    wrong, imported = outcomes[command]
    assert not wrong
    assert imported == []
