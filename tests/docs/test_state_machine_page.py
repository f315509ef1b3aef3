"""The page about the state machine says what states.py says."""

from __future__ import annotations

import re
from pathlib import Path

from jobqueue.states import DISCARDABLE, TRANSITIONS, Transition

PAGE = (Path(__file__).parents[2] / "docs" / "state-machine.md").read_text()


def test_the_diagram_has_the_transitions_of_the_table_and_no_other() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+)$", PAGE, flags=re.MULTILINE))
    table = {
        (source.value, target.value, verb.value) for verb, steps in TRANSITIONS.items() for source, target in steps
    }
    assert drawn == table


def test_the_diagram_shows_from_where_a_job_can_be_discarded() -> None:
    assert set(re.findall(r"^    (\w+) --> \[\*\]: discard$", PAGE, flags=re.MULTILINE)) == set(DISCARDABLE)


def test_the_table_of_verbs_names_every_verb() -> None:
    assert {*Transition, "discard"} == set(
        re.findall(r"^\| (\w+) \| (?:pending|running|failed)", PAGE, flags=re.MULTILINE)
    )
