import pytest

from advisor.performance.constraint import parse, satisfied

CASES = [
    (None, set(), True),
    ("", set(), True),
    ("a", {"a"}, True),
    ("a", {"b"}, False),
    ("a&b", {"a"}, False),
    ("a&b", {"a", "b"}, True),
    ("a|b", {"b"}, True),
    ("[a|b]", {"a"}, True),
    ("[a|b]&c", {"a"}, False),
    ("[a|b]&c", {"b", "c"}, True),
    ("(a|b)&(c|d)", {"b", "d"}, True),
    ("(a|b)&(c|d)", {"a", "b"}, False),
    ("a*2", {"a"}, True),
    ("[rack1*2|rack2*4]", {"rack2"}, True),
    ("nvidia-a100.80gb", {"nvidia-a100.80gb"}, True),
]


@pytest.mark.parametrize(("text", "features", "expected"), CASES)
def test_an_expression_means_what_slurm_means_by_it(text, features, expected):
    constraint = parse(text)
    assert constraint is not None
    assert satisfied(constraint, features) == expected


@pytest.mark.parametrize(
    "text",
    ["a&b|c", "a&", "&a", "(a", "a)", "[a|b", "a b", "!a", "a;b", "()", "(" * 40 + "a" + ")" * 40, "a|" * 700 + "a"],
)
def test_what_is_not_understood_is_said_to_be(text):
    assert parse(text) is None


def test_an_expression_that_would_multiply_out_is_refused():
    assert parse("&".join(f"(a{i}|b{i})" for i in range(20))) is None
