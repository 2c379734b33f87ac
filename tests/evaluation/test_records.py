"""One shape of the record of every evaluation: tables, averages, overlap, and all options that figures depend on."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from tests.evaluation.conftest import NgramEncoder, measured, save_hashes
from tests.evaluation.test_evaluations import CASES, Case, options_of
from xrep.files import json_text
from xrep.registry import EVALUATIONS

WITHOUT_INFLUENCE = set(
    "data query query_file batch_tokens max_tokens cache list_sentences dimensions plot save_translations".split()
)
"""Options that change no figure, or name what the record has beside its settings: data by checksums, queries."""
NO_TESTS = {"neighbours", "scatter"}
"""Evaluations of a user's own text, in which overlap with the training text means nothing."""
WITHOUT_TABLES = {"neighbours", "scatter", "language-bias"}
"""Evaluations whose values are not those of tables."""
KEYS = {"test", "values", "headline", "intervals", "model", "data", "settings", "version", "overlap"}


@pytest.mark.parametrize("name", EVALUATIONS.names())
def test_every_test_counts_the_overlap_and_records_its_options(name: str) -> None:
    kind = EVALUATIONS.load(name)
    options = {option.name for option in fields(kind.Config)}
    assert options & kind.unrecorded <= WITHOUT_INFLUENCE
    assert ("drop_overlap" in options) == (name not in NO_TESTS)


@pytest.mark.slow
@pytest.mark.usefixtures("classifier")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_record_has_one_shape(case: Case, tmp_path: Path) -> None:
    kind, given = EVALUATIONS.load(case.name), options_of(case, case.write(tmp_path / "data", case.rows))
    config, encoder = kind.Config(**given), NgramEncoder(training_hashes=save_hashes(tmp_path, [*case.known, "yes"]))
    figures = measured(kind, encoder, **given)
    record = json.loads(json_text(figures.record(case.name, encoder)))
    assert record.keys() == KEYS and set(record["intervals"]) <= set(record["headline"])
    assert set(vars(config)) - WITHOUT_INFLUENCE <= set(record["settings"])
    assert (record["overlap"] is None) == (case.name in NO_TESTS)
    tables, averages = record["values"]["tables"], record["values"]["averages"]
    assert bool(tables) == (case.name not in WITHOUT_TABLES) and (tables or not averages)
    for own in tables.values():
        assert own["overlap"].keys() == {"found", "total", "dropped"} and 0 < own["examples"] <= own["overlap"]["total"]
    if case.name not in WITHOUT_TABLES:
        counts = {key: sum(own["overlap"][key] for own in tables.values()) for key in ("found", "total")}
        assert counts == {key: record["overlap"][key] for key in counts} and counts["found"] == len(case.seen)
    for label, own in averages.items():
        assert isinstance(own.pop("examples"), int) and all(isinstance(value, float) for value in own.values()), label
