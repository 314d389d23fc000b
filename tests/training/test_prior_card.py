"""The card of the shipped prior tells what can be measured anew."""

from __future__ import annotations

import pytest
import yaml

from advisor.performance.told import shipped
from advisor.resources import folder
from advisor.training.told_figures import figures


def test_the_cards_figures_are_those_of_the_shipped_prior() -> None:
    card = yaml.safe_load((folder("models") / "prior" / "card.yaml").read_text(encoding="utf-8"))
    measured = figures(shipped())
    assert measured == pytest.approx(card["figures"], abs=0.005)
    assert measured["median_error_corrected"] < measured["median_error_told"]
