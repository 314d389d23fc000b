"""Every metric that the installed perf prints parses, and evaluates to what Python itself makes of it."""

import random
import re
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.contention.evaluate import EvaluationError, Machine, evaluate, linearise
from advisor.contention.expression import (
    PRECEDENCE,
    Binary,
    Call,
    Choice,
    Constant,
    ExpressionError,
    Name,
    Negative,
    Number,
    Query,
    names,
    parse,
)
from advisor.contention.vendor import CPU_IDS, PerfError, from_listing, read

needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="needs linux-perf")

# What SKX prints in perf 6.1; other releases of perf may carry more or fewer.
LEAST_METRICS = {"skx": 200, "clx": 200, "icx": 200, "spr": 200, "zen2": 11, "zen3": 13}


def value(text, **values):
    return float(evaluate(parse(text), values, Machine()))


def by_python(text, counts, metrics, machine):
    """The expression rewritten as Python and computed by Python's own parser and floats."""
    names_used, source = {}, []
    word = re.compile(r"#?(?:\\.|[\w.:@?])+|\s+|.")
    for piece in word.findall(text):
        plain = piece.replace("\\", "")
        if piece in ("if", "else", "min", "max", "d_ratio", "source_count") or not re.match(r"[#\w\\]", piece):
            source.append(piece)
        elif re.fullmatch(r"\d+\.?\d*(e-?\d+)?", piece):
            source.append(f"{float(piece)!r}")
        elif piece.startswith("#"):
            source.append(repr(machine.constants[plain[1:].lower()]))
        else:
            variable = names_used.setdefault(plain, f"v{len(names_used)}")
            source.append(variable)
    python = re.sub(r"source_count\(\s*v\d+\s*\)", "3.0", "".join(source)).strip()
    scope = {variable: metrics.get(name, counts.get(name)) for name, variable in names_used.items()}
    scope |= {"__builtins__": {}, "min": min, "max": max, "d_ratio": lambda a, b: a / b if b else 0.0}
    return float(eval(python, scope))


@needs_perf
@pytest.mark.parametrize("cpu", sorted(CPU_IDS))
def test_every_metric_of_the_cpu_equals_an_independent_evaluation(cpu):
    relations = read(cpu)
    assert len(relations.metrics) >= LEAST_METRICS[cpu]
    machine = Machine(sources=dict.fromkeys(relations.events, 3.0))
    for seed in range(5):
        draw = random.Random(seed)
        counts = {event: 10 ** draw.uniform(3, 10) for event in relations.events}
        ours = relations.evaluate(counts, machine)
        theirs: dict[str, float] = {}
        for name in relations.order:
            theirs[name] = by_python(relations.metrics[name].text, counts, theirs, machine)
            assert ours[name] == pytest.approx(theirs[name], rel=1e-9, nan_ok=True), (name, seed)
        # The check would mean nothing if most metrics had no value.
        assert np.mean([np.isfinite(float(v)) for v in ours.values()]) > 0.95


@needs_perf
@pytest.mark.parametrize("cpu", ["skx", "icx", "zen3"])
def test_slopes_equal_finite_differences(cpu):
    relations, machine = read(cpu), Machine()
    draw = random.Random(7)
    values = {event: 10 ** draw.uniform(4, 6) for event in relations.events}
    values |= {k: float(v) for k, v in relations.evaluate(values, machine).items()}
    checked = 0
    for metric in relations.metrics.values():
        centre, slopes = linearise(metric.tree, values, machine)
        for name in names(metric.tree):
            step = abs(values[name]) * 1e-6 or 1e-6
            up = float(evaluate(metric.tree, values | {name: values[name] + step}, machine))
            down = float(evaluate(metric.tree, values | {name: values[name] - step}, machine))
            if abs((up - float(centre)) - (float(centre) - down)) > 0.01 * abs(up - down):
                continue  # at a kink of min, max or if, where neither slope is the slope
            scale = max(abs(float(centre)), 1e-12) / abs(values[name] or 1.0)
            expected = (up - down) / (2 * step)
            assert float(slopes.get(name, 0.0)) == pytest.approx(expected, rel=1e-3, abs=1e-3 * scale)
            checked += 1
    assert checked > 20


@needs_perf
def test_the_graph_of_skylake_is_the_one_in_the_notes():
    relations = read("skx")
    edges = sum(len(names(m.tree)) for m in relations.metrics.values())
    assert len(relations.metrics) == pytest.approx(218, abs=20)
    assert edges - (len(relations.metrics) + len(relations.events)) > 100, "not a tree: it has redundancy"


@needs_perf
def test_arrays_of_nodes_evaluate_at_once():
    relations, machine = read("icx"), Machine()
    draw = np.random.default_rng(1)
    counts = {event: draw.uniform(1e3, 1e9, size=4) for event in relations.events}
    together = relations.evaluate(counts, machine)
    alone = relations.evaluate({event: float(count[2]) for event, count in counts.items()}, machine)
    for name, one in alone.items():
        assert np.broadcast_to(together[name], 4)[2] == pytest.approx(float(one), nan_ok=True)


@needs_perf
def test_ancestors_keep_only_what_the_wanted_metric_needs():
    kept = read("skx").ancestors(["DRAM_BW_Use"])
    assert set(kept) == {
        "DRAM_BW_Use",
        "uncore_imc@cas_count_read@",
        "uncore_imc@cas_count_write@",
        "duration_time",
    }


def test_a_machine_without_perf_says_what_to_install():
    with pytest.raises(PerfError, match="apt-get install linux-perf"):
        read(perf="perf-that-is-not-there")


def test_wrapped_and_thresholded_listings_of_newer_perf_read_the_same():
    listing = (
        "\nMetrics:\n\n  ipc\n       [Instructions\n        per cycle [per thread]]\n"
        "       [inst /\n        clks]\n       [ipc > 2]\n\nGroup:\n  clks\n       [Clocks]\n       [cycles:u]\n"
    )
    relations = from_listing("x", listing)
    assert relations.metrics["ipc"].tree == Binary("/", Name("inst"), Name("clks"))
    assert relations.metrics["ipc"].description == "Instructions per cycle [per thread]"
    assert relations.events == ("inst", "cycles:u")
    assert relations.order == ("clks", "ipc")


def test_metrics_that_define_each_other_are_refused():
    listing = "  a\n       [x]\n       [b + 1]\n  b\n       [x]\n       [a * 2]\n"
    with pytest.raises(PerfError, match=r"circle: .*a.*b"):
        _ = from_listing("x", listing).order


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("1 + 2 * 3", 7),
        ("2 * 3 - 1 - 1", 4),
        ("8 / 4 / 2", 1),
        ("-2 * 3 + 7", 1),
        ("- (2 - 5)", 3),
        ("7 % 4", 3),
        ("5 & 3 | 8", 9),
        ("6 ^ 3", 5),
        ("1 < 2 & 2 < 3", 1),
        ("1 + 1 > 1", 1),
        ("1 if 0 else 2 if 1 else 3", 2),
        ("1 if 2 > 1 else 2", 1),
        ("(1 if 0 else 2) * 10", 20),
        ("min(4, 3) + max(1 if 0 else 5, 2)", 8),
        ("d_ratio(3, 0)", 0),
        ("d_ratio(3, 2)", 1.5),
        ("1.5e3 + .5", 1500.5),
        ("2e-3 * 1000", 2),
        ("#SMT_on * 2 + #num_packages", 4),
        ("source_count(x) + has_event(x)", 2),
        ("strcmp_cpuid_str(0x410fd493)", 0),
        ("128B.x / 2", 4),
        ("cpu@A.B\\,cmask\\=0x1\\,edge@ + topdown\\-bad:u", 5),
    ],
)
def test_values_follow_perfs_rules(text, result):
    values = {"128B.x": 8.0, "cpu@A.B,cmask=0x1,edge@": 2.0, "topdown-bad:u": 3.0}
    assert float(evaluate(parse(text), values, Machine())) == result


def test_division_by_zero_has_no_value():
    assert np.isnan(value("1 / a", a=0.0))
    assert np.isnan(value("1 % a", a=0.0))
    assert value("1 if a else 2", a=0.0) == 2


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "ends where a value"),
        ("a +", 3, "ends where a value"),
        ("a + * b", 4, "expected a value"),
        ("(a + b", 6, r"to close the `\(` at character 1"),
        ("a b", 2, "expected an operator"),
        ("a if b", 2, "without `else`"),
        ("min(a)", 5, "between the two arguments"),
        ("max a, b", 4, r"expected `\(`"),
        ("source_count(1 + 2)", 15, "to close"),
        ("source_count((x))", 13, "needs one name"),
        ("a ~ b", 2, "unexpected '~'"),
        ("a \\x", 2, "must stand before"),
        ("# + 1", 0, "without the name"),
        ("a == b", 2, "unexpected '='"),
        ("a else b", 2, "expected an operator"),
        ("(" * 500 + "a" + ")" * 500, 200, "deeper"),
        ("-" * 500 + "a", 200, "deeper"),
    ],
)
def test_a_bad_expression_is_refused_with_its_position(text, position, problem):
    with pytest.raises(ExpressionError, match=problem) as caught:
        parse(text)
    assert caught.value.position == position
    assert f"character {position + 1}" in str(caught.value)


def test_an_unmeasured_event_is_named():
    with pytest.raises(EvaluationError, match=r"A\.B"):
        evaluate(parse("A.B + 1"), {}, Machine())
    with pytest.raises(EvaluationError, match="#no_such"):
        evaluate(parse("#no_such"), {}, Machine())


trees = st.recursive(
    st.one_of(
        st.floats(0, 1e12).map(Number),
        st.from_regex(r"[a-z]{3}[a-z0-9_.,=\-]{0,5}@?", fullmatch=True)
        .filter(lambda n: n not in ("min", "max", "else"))
        .map(Name),
        st.just(Constant("smt_on")),
        st.just(Query("source_count", "x.y")),
    ),
    lambda inner: st.one_of(
        inner.map(Negative),
        st.builds(Binary, st.sampled_from(sorted(PRECEDENCE)), inner, inner),
        st.builds(Call, st.sampled_from(["min", "max", "d_ratio"]), inner, inner),
        st.builds(Choice, inner, inner, inner),
    ),
    max_leaves=25,
)


def spelled(tree):
    match tree:
        case Number(number):
            return format(number, "f") if float(format(number, "f")) == number else repr(number).replace("+", "")
        case Name(name):
            return re.sub(r"([-,=])", r"\\\1", name)
        case Constant(name):
            return f"#{name}"
        case Query(function, name):
            return f"{function}({name})"
        case Negative(operand):
            return f"-({spelled(operand)})"
        case Binary(operator, left, right):
            return f"({spelled(left)}) {operator}({spelled(right)})"
        case Call(function, left, right):
            return f"{function}({spelled(left)},{spelled(right)})"
        case Choice(condition, then, otherwise):
            return f"(({spelled(then)}) if ({spelled(condition)}) else ({spelled(otherwise)}))"


@given(trees)
def test_what_is_spelled_out_reads_back_as_the_same_tree(tree):
    assert parse(spelled(tree)) == tree


@given(st.text(alphabet="ab1.e#()+-*/%|&^<>,\\=@: ifelsminmax_", max_size=60))
def test_wild_text_is_either_a_tree_or_a_placed_error(text):
    try:
        parse(text)
    except ExpressionError as error:
        assert 0 <= error.position <= len(text)
