"""Answers to one kind prepared in a row: taken one by one, the short way, while each job is like the one before."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hook_ends import PARTITIONS, REWRITE, UNCHANGED, Slurmctld, line
from prepared_answers import AS_ASKED, AS_PREPARED, TAKEN_BACK, TOLD, Preparing, prepared, row

FUNCTIONS = ("_get_job_req_field_name", "_get_job_env_field_name", "_set_job_env_field")


@pytest.fixture(params=[(), FUNCTIONS], ids=["by slurmctld's functions", "by its tables"])
def slurmctld(start_slurmctld: Callable[..., Slurmctld], request: pytest.FixtureRequest) -> Slurmctld:
    """Everything here holds whichever way a job like the last one is read."""
    return start_slurmctld(*request.param)


def test_a_request_says_how_many_answers_in_a_row_are_kept(preparing: Preparing, asked_once: Slurmctld) -> None:
    assert preparing.asked[0]["row"] == 64


def test_a_row_is_taken_one_by_one_and_goes_on_where_more_of_it_comes(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(row(16))
    tokens = []
    for n in range(60):
        if n and n % 8 == 0:  # half of it is used
            preparing.say(row(8, after=9 + n, number=108 + n, follows=100 + n if n > 8 else 100))
        outcome = asked_once.submit()
        assert outcome.fields["partition"] == "v100"
        tokens.append(outcome.fields["admin_comment"])
    assert tokens == [f"advisor=t{100 + n}" for n in range(60)]
    assert preparing.noted(*range(100, 160)) and len(preparing.asked) == 1


def test_a_row_that_was_taken_back_is_not_taken_any_further(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(8))
    for n in range(3):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{100 + n}"
    assert preparing.noted(100, 101, 102)
    preparing.take_back()
    assert asked_once.submit().fields == AS_ASKED
    assert asked_once.submit().fields == AS_ASKED  # nor after that
    assert preparing.noted(100, 101, 102) and len(preparing.asked) == 3


def test_a_row_that_takes_the_place_of_one_that_was_taken_back_is_taken_at_once(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(row(8))
    for n in range(3):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{100 + n}"
    assert preparing.noted(100, 101, 102)
    preparing.take_back()
    preparing.say(row(8, after=4, number=200))
    for n in range(8):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{200 + n}"
    assert len(preparing.asked) == 1 and preparing.noted(100, 101, 102, *range(200, 208))


@pytest.mark.parametrize(
    "unasked", [TAKEN_BACK, line(REWRITE), b"x", b"\n"], ids=["taken back", "late", "half", "empty"]
)
def test_another_job_in_the_middle_of_a_row_gets_its_own_answer_whatever_came_just_before(
    preparing: Preparing, asked_once: Slurmctld, unasked: bytes
) -> None:
    preparing.say(row(8))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    preparing.say(unasked)
    other = {**UNCHANGED, "name": "other"}
    assert asked_once.submit(other).fields == {**AS_ASKED, "name": "other"}
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100)


def test_a_row_of_which_the_daemon_may_no_longer_be_told_is_not_taken(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(row(8))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert preparing.noted(100)
    preparing.daemon.stop()
    assert asked_once.submit().fields == UNCHANGED
    preparing.daemon.start()
    assert asked_once.submit().fields == AS_ASKED


def test_whatever_a_job_in_the_middle_of_a_row_differs_in_it_gets_its_own_answer(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    for n, (field, value) in enumerate(TOLD.items()):
        after = 1 + 4 * n  # two are taken from a row, and two asked for
        preparing.say(row(8, after=after, number=100 * n))
        for place in range(2):
            assert asked_once.submit().fields["admin_comment"] == f"advisor=t{100 * n + place}", field
        asked_once.submit({**UNCHANGED, field: value})
        assert preparing.asked[-1]["kind"] == 2 + n, field
        assert asked_once.submit().fields == AS_ASKED
    assert len(preparing.used) == 2 * len(TOLD)


IN_A_ROW_BUT: dict[str, dict[str, Any]] = {
    "another environment": {"environment": {"ADVISOR_APP": "other"}},
    "fewer partitions": {"partitions": {name: PARTITIONS[name] for name in ("cpu", "a100")}},
    "more partitions": {"partitions": {**PARTITIONS, "more": PARTITIONS["cpu"]}},
    "another submitter, and nobody it belongs to": {
        "fields": {key: value for key, value in UNCHANGED.items() if key != "user_id"},
        "uid": 1002,
    },
    "no script": {"fields": {key: value for key, value in UNCHANGED.items() if key != "script"}},
}


@pytest.mark.parametrize("change", IN_A_ROW_BUT.values(), ids=IN_A_ROW_BUT.keys())
def test_a_job_that_differs_in_something_else_in_the_middle_of_a_row_is_asked_for(
    preparing: Preparing, asked_once: Slurmctld, change: dict[str, Any]
) -> None:
    preparing.say(row(8))
    for n in range(2):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{100 + n}"
    assert asked_once.submit(**change).fields["admin_comment"] == "advisor=asked"
    assert preparing.noted(100, 101) and preparing.asked[-1]["kind"] == 2


def test_a_script_that_differs_only_behind_its_comments_takes_the_next_of_the_row(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(row(8))
    for n in range(6):
        script = UNCHANGED["script"] + f"srun y{n % 3}\n"
        assert asked_once.submit({**UNCHANGED, "script": script}).fields["admin_comment"] == f"advisor=t{100 + n}"
    assert len(preparing.asked) == 1


def test_srun_takes_rows_too(preparing: Preparing, slurmctld: Slurmctld) -> None:
    srun = {key: value for key, value in UNCHANGED.items() if key != "script"}
    assert slurmctld.submit(srun).fields["admin_comment"] == "advisor=asked"
    preparing.say(row(8))
    for n in range(8):
        outcome = slurmctld.submit(srun)
        assert outcome.fields["admin_comment"] == f"advisor=t{100 + n}" and outcome.logged == []


def test_in_the_middle_of_a_row_everything_is_set_or_nothing(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(16, message="moved"))
    place = 0
    for field in ("partition", "tres_per_node", "admin_comment", "environment"):
        for refuses in (None, field, None):
            outcome = asked_once.submit(**({"refuses": refuses} if refuses else {}))
            assert outcome.accepted
            if refuses:
                assert outcome.fields == UNCHANGED and outcome.environment == {} and outcome.told == []
            else:
                assert outcome.fields == AS_PREPARED | {"admin_comment": f"advisor=t{100 + place}"}
                assert outcome.environment == {"ADVISOR_TOKEN": f"t{100 + place}"} and outcome.told == ["moved"]
            place += 1
    assert preparing.noted(*range(100, 112)) and len(preparing.asked) == 1


def test_what_the_sites_own_rules_wrote_stays_in_front_of_every_token_of_a_row(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(row(8))
    for n in range(4):
        outcome = asked_once.submit({**UNCHANGED, "admin_comment": f"site {n}"})
        assert outcome.fields["admin_comment"] == f"site {n} advisor=t{100 + n}"


def test_the_disable_file_holds_in_the_middle_of_a_row(
    preparing: Preparing, asked_once: Slurmctld, tmp_path: Path
) -> None:
    preparing.say(row(8))
    for n in range(3):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{100 + n}"
    (tmp_path / "disable").touch()
    assert asked_once.submit().fields == UNCHANGED
    (tmp_path / "disable").unlink()
    assert asked_once.submit().fields["admin_comment"] == "advisor=t103"
    assert preparing.noted(100, 101, 102, 103)


@pytest.mark.parametrize("concerned", ["v100", "cpu"], ids=["where it would go", "where it would stay"])
def test_a_change_by_the_administrator_in_the_middle_of_a_row_is_told_within_a_second(
    preparing: Preparing, asked_once: Slurmctld, concerned: str
) -> None:
    preparing.say(row(8))
    for n in range(2):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{100 + n}"
    changed = {**PARTITIONS, concerned: {**PARTITIONS[concerned], "max_time": 60}}
    time.sleep(1.01)
    assert asked_once.submit(partitions=changed).fields == AS_ASKED
    assert preparing.asked[-1]["kind"] == 2


@pytest.mark.parametrize("named", ["default_account", "default_qos"])
def test_a_users_other_default_in_the_middle_of_a_row_is_told_within_a_second(
    preparing: Preparing, slurmctld: Slurmctld, named: str
) -> None:
    assert slurmctld.submit({**UNCHANGED, named: "one"}).fields["admin_comment"] == "advisor=asked"
    preparing.say(row(8))
    for n in range(2):
        assert slurmctld.submit({**UNCHANGED, named: "one"}).fields["admin_comment"] == f"advisor=t{100 + n}"
    time.sleep(1.01)
    assert slurmctld.submit({**UNCHANGED, named: "two"}).fields["admin_comment"] == "advisor=asked"
    assert preparing.asked[-1]["kind"] == 2 and preparing.asked[-1][named] == "two"


def test_a_change_where_no_answer_of_a_row_would_bring_a_job_does_not_end_it(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    preparing.say(row(8))
    for n in range(2):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{100 + n}"
    changed = {**PARTITIONS, "a100": {**PARTITIONS["a100"], "max_time": 60}}
    time.sleep(1.01)
    for n in range(2, 4):
        assert asked_once.submit(partitions=changed).fields["admin_comment"] == f"advisor=t{100 + n}"
    assert asked_once.submit({**UNCHANGED, "name": "other"}, partitions=changed).fields["partition"] == "a100"
    told = {partition["name"]: partition for partition in preparing.asked[-1]["partitions"]}
    assert told["a100"]["max_time"] == 60  # whoever asks tells all of it


def test_another_job_ends_a_row(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(8) + prepared(kind=2, after=2, number=50))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert asked_once.submit({**UNCHANGED, "name": "other"}).fields["admin_comment"] == "advisor=asked"
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100) and len(preparing.asked) == 3


def test_a_row_for_each_of_two_kinds_ends_with_the_first_use_of_the_other(
    preparing: Preparing, asked_once: Slurmctld
) -> None:
    other = {**UNCHANGED, "name": "other"}
    asked_once.submit(other)
    preparing.say(row(4, after=2) + row(4, after=2, number=200, kind=2))
    assert asked_once.submit(other).fields["admin_comment"] == "advisor=t200"
    assert asked_once.submit().fields == AS_ASKED
    assert asked_once.submit(other).fields["admin_comment"] == "advisor=asked"
    assert preparing.noted(200)


def test_what_follows_an_answer_that_was_not_used_is_not_taken(preparing: Preparing, asked_once: Slurmctld) -> None:
    """As when the daemon works a row out anew while the first of the old one is being used."""
    preparing.say(row(4, good_s=5.0))  # old: another may have come
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    preparing.say(row(4, number=200))
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100)


def test_a_new_row_takes_the_place_of_the_old_one(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(8) + row(2, number=200))
    for n in range(2):
        assert asked_once.submit().fields["admin_comment"] == f"advisor=t{200 + n}"
    assert asked_once.submit().fields == AS_ASKED  # the old row's third was worked out after others
    assert preparing.noted(200, 201)


def test_a_row_of_a_daemon_that_was_restarted_is_not_taken(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(8))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert preparing.noted(100)  # read by now: what it has not read yet is lost where it hangs up
    preparing.daemon.hang_up()
    assert asked_once.submit().fields == AS_ASKED
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.used == [100]


def test_an_answer_in_a_row_that_may_not_be_applied_ends_it(preparing: Preparing, asked_once: Slurmctld) -> None:
    bad = row(1, after=2, number=101, follows=100, set={"partition": "secret"})
    preparing.say(row(1) + bad + row(1, after=3, number=102, follows=101))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert asked_once.submit().fields == AS_ASKED
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100)


def test_an_old_answer_in_a_row_is_passed_over(preparing: Preparing, asked_once: Slurmctld) -> None:
    preparing.say(row(1) + row(3, after=2, number=101, follows=100, good_s=-0.1))
    assert asked_once.submit().fields["admin_comment"] == "advisor=t100"
    assert asked_once.submit().fields == AS_ASKED
    assert preparing.noted(100)


def test_a_job_like_the_last_one_is_read_by_slurmctlds_own_functions(
    preparing: Preparing, start_slurmctld: Callable[..., Slurmctld]
) -> None:
    slurmctld = start_slurmctld()
    assert slurmctld.submit().fields == AS_ASKED
    preparing.say(row(8))
    assert slurmctld.submit().fields["admin_comment"] == "advisor=t100"
    outcome = slurmctld.submit(unreadable_tables=True)
    assert outcome.fields["admin_comment"] == "advisor=t101" and outcome.environment == {"ADVISOR_TOKEN": "t101"}


@pytest.mark.parametrize("hidden", FUNCTIONS)
def test_where_one_of_these_functions_is_missing_its_tables_are_read(
    preparing: Preparing, start_slurmctld: Callable[..., Slurmctld], hidden: str
) -> None:
    slurmctld = start_slurmctld(hidden)
    assert slurmctld.submit().fields == AS_ASKED
    preparing.say(row(8))
    for n in range(3):
        assert slurmctld.submit().fields["admin_comment"] == f"advisor=t{100 + n}"
    assert len(preparing.asked) == 1


def test_a_table_that_the_sites_own_script_made_is_read_as_it_is(
    preparing: Preparing, start_slurmctld: Callable[..., Slurmctld]
) -> None:
    slurmctld = start_slurmctld()
    assert slurmctld.submit(wrapped=True).fields == AS_ASKED
    preparing.say(row(8))
    for n in range(4):
        outcome = slurmctld.submit(wrapped=n % 2 == 0)  # slurmctld's own again in between
        assert outcome.fields["admin_comment"] == f"advisor=t{100 + n}"
        assert outcome.environment == {"ADVISOR_TOKEN": f"t{100 + n}"}
    assert len(preparing.asked) == 1
