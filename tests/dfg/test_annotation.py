"""What users write about their jobs, and what they are told when it cannot be read."""

import json

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from advisor.dfg import annotation as annotations
from advisor.dfg import document
from advisor.dfg.annotation import AnnotationError, find
from advisor.dfg.graph import Annotation, Edge, Kernel

DESIGN = """#!/bin/bash
#SBATCH --gres=gpu:1 --time=04:00:00
#ADVISOR app: resnet50                      # what to learn under; default: the job's name
#ADVISOR kernels:
#ADVISOR   decode: {on: [cpu], work: 3.0e12, memory: 4G}
#ADVISOR   train:  {on: [gpu, cpu], work: 8.0e15, memory: 12G}
#ADVISOR edges: [[decode, train, 20G]]
#ADVISOR share: true                        # may share a GPU or node with others
#ADVISOR flexible: [partition, gpu_type]    # may override what the command line fixed

srun python train.py
"""
GRAPH = Annotation(
    app="resnet50",
    kernels=(
        Kernel("decode", ("cpu",), 3.0e12, 4 << 30),
        Kernel("train", ("gpu", "cpu"), 8.0e15, 12 << 30),
    ),
    edges=(Edge("decode", "train", 20 << 30),),
    share=True,
    flexible=("partition", "gpu_type"),
    source="script",
)


def in_environment(text):
    return find(None, {"ADVISOR_DFG": text}, None, None)


def message(text):
    with pytest.raises(AnnotationError) as error:
        in_environment(text)
    return error.value.message


def test_the_example_of_the_documentation_is_read_as_it_says():
    assert find(DESIGN, {}, None, None) == GRAPH


def test_windows_line_ends_make_no_difference():
    assert find(DESIGN.replace("\n", "\r\n"), {}, None, None) == GRAPH


def test_a_job_without_an_annotation_has_none():
    assert find("#!/bin/sh\n#SBATCH -n 1\nsrun x\n", {}, "zone=1", "paper 3, advisor: Prof. Smith") is None
    assert find(None, {}, None, None) is None
    assert find("", {"ADVISOR_DFG": " \n"}, "", "") is None


def test_lines_after_the_first_command_are_not_read():
    assert find("#!/bin/sh\n\n  # note\nsrun x\n#ADVISOR app: late\n", {}, None, None) is None


@pytest.mark.parametrize(
    "line", ["#ADVISORY notice: read this", "# ADVISOR app: x", " #ADVISOR app: x", "##ADVISOR app: x"]
)
def test_what_only_looks_like_an_annotation_line_is_a_comment(line):
    assert find(f"#!/bin/sh\n{line}\n", {}, None, None) is None


@pytest.mark.parametrize("sign", [":", "="])
def test_whoever_puts_a_colon_after_the_word_is_told_and_may_still_say_off(sign):
    with pytest.raises(AnnotationError) as error:
        find(f"#!/bin/sh\n#ADVISOR share: true\r\n#ADVISOR{sign} app: lammps\r\nsrun x\n", {}, None, None)
    assert error.value.line == 3 and error.value.message == f'write "#ADVISOR " without "{sign}" after it'
    off = find(f"#!/bin/sh\n#ADVISOR{sign} off\r\n", {}, None, None)
    assert off is not None and off.off
    assert find(f"#!/bin/sh\nsrun x\n#ADVISOR{sign} app: lammps\n", {}, None, None) is None


def test_the_script_wins_over_the_environment_over_extra_over_the_comment():
    places = ["#ADVISOR app: one\n", {"ADVISOR_DFG": "app: two"}, "advisor:{app: three}", "x advisor:{app: four} y"]
    empty = [None, {}, None, None]
    for index, (app, source) in enumerate(
        [("one", "script"), ("two", "environment"), ("three", "extra"), ("four", "comment")]
    ):
        found = find(*empty[:index], *places[index:])
        assert (found.app, found.source) == (app, source)


def test_a_bad_annotation_is_reported_even_where_a_later_place_has_a_good_one():
    with pytest.raises(AnnotationError):
        find("#ADVISOR ap: one\n", {"ADVISOR_DFG": "app: two"}, None, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ("#ADVISOR off\n", {}, None, None),
        ("#ADVISOR off   # for now\n#ADVISOR app: [broken\n", {}, None, None),
        (DESIGN, {"ADVISOR": "off"}, None, None),
        (None, {"ADVISOR_DFG": "off"}, None, None),
        (None, {"ADVISOR_DFG": "{off: true, app: x}"}, None, None),
        (None, {}, None, "advisor:off please"),
        (None, {}, '{"advisor": "off"}', None),
    ],
)
def test_off_leaves_the_job_alone_from_every_place(arguments):
    assert find(*arguments).off


def test_advisor_app_names_the_app_where_the_annotation_does_not():
    environment = {"ADVISOR_APP": "lammps"}
    assert find(None, environment, None, None) == Annotation(app="lammps", source="environment")
    assert find("#ADVISOR share: true\n", environment, None, None) == Annotation(
        app="lammps", share=True, source="script"
    )
    assert find(DESIGN, environment, None, None).app == "resnet50"
    with pytest.raises(AnnotationError, match="ADVISOR_APP: app: the name is longer than 128 characters"):
        find(None, {"ADVISOR_APP": "x" * 129}, None, None)


@pytest.mark.parametrize(
    ("comment", "app"),
    [
        ("run 7; advisor:{app: x}; see wiki", "x"),
        ('advisor: {app: "a } b"} and more }', "a } b"),
        ("advisor:{app: it's} don't}", "it's"),
        ("advisor:{app: 'it''s }'} tail", "it's }"),
        ("advisor:{app: y, kernels: {a: {on: [gpu]}}} %@", "y"),
        ("mail bob@advisor:{x} advisor:{app: z}", "z"),
    ],
)
def test_the_token_in_a_comment_ends_with_its_brace(comment, app):
    assert find(None, {}, None, comment).app == app


def test_extra_as_json_is_read_and_other_uses_of_extra_are_left_alone():
    extra = json.dumps({"zone": 3, "advisor": {"app": "x", "share": True, "kernels": {"k": {"work": 1e15}}}})
    assert find(None, {}, extra, None) == Annotation(
        app="x", share=True, kernels=(Kernel("k", work=1e15),), source="extra"
    )
    assert find(None, {}, '{"zone": 3, "note": "advisor"}', None) is None
    assert find(None, {}, "advisor>=3&zone=1", None) is None


@pytest.mark.parametrize(
    ("spelled", "size"),
    [("0", 0), ("1024", 1024), ("512M", 512 << 20), ("1.5T", 3 << 39), ("4GB", 4 << 30), ("4GiB", 4 << 30),
     ("2k", 2048), ("1e9", 10**9), ("9007199254740993", 9007199254740993), ("'4G'", 4 << 30), ("100 B", 100)],
)  # fmt: skip
def test_sizes_are_binary_as_in_slurm_and_plain_numbers_are_bytes(spelled, size):
    assert in_environment(f"kernels: {{k: {{memory: {spelled}}}}}").kernels[0].memory == size


def test_kernels_may_be_written_shortly_or_at_length():
    found = in_environment("kernels:\n  a:\n  b: {on: GPU}\n  c:\n    on:\n    - v100\n    - cpu\n    work: 1_000\n")
    assert found.kernels == (Kernel("a"), Kernel("b", ("gpu",)), Kernel("c", ("v100", "cpu"), 1000.0))


def test_edges_may_come_before_kernels_and_in_any_spelling_of_yaml():
    expected = (Edge("a", "b", 1 << 30), Edge("b", "c", 0))
    kernels = "kernels: {a: {}, b: {}, c: {}}"
    for edges in (
        "edges: [[a, b, 1G], [b, c]]",
        "edges: [[a, b, 1G], [b, c]]  # bytes",
        "edges: [\n [a,b,1G],\n\n [b,c,],\n]",
        "edges:\n- [a, b, 1G]\n- [b, 'c']",
        "edges:\n  -\n    - a\n    - b\n    - 1G\n  - [b, c]",
    ):
        assert in_environment(f"{edges}\n{kernels}").edges == expected
        assert in_environment(f"{kernels}\n{edges}\n").edges == expected


GOLDEN = [
    ("#!/bin/sh\n#\n#SBATCH -n 1\n\n#ADVISOR kernels:\n#\n#ADVISOR   train: {wrok: 1}\n",
     'line 7 of the script: kernel "train": unknown key "wrok" (did you mean "work"?)'),
    ("#ADVISOR colour: red\n",
     'line 1 of the script: unknown key "colour" (known: app, edges, flexible, kernels, off, requeue, share, '
     "work, workflow)"),
    ("#ADVISOR app: x\n#ADVISOR app: y\n", 'line 2 of the script: "app" is there twice'),
    ("#ADVISOR app: [x]\n", "line 1 of the script: app: expected a name, not a list"),
    ("#ADVISOR app:\n", "line 1 of the script: app: the name is empty"),
    ("#ADVISOR app: a: b\n", "line 1 of the script: not valid YAML: mapping values are not allowed in this context"),
    ("#ADVISOR resnet50\n",
     'line 1 of the script: expected "KEY: VALUE" with a key of app, edges, flexible, kernels, off, requeue, share, '
     'work, workflow, or "off"'),
    ("#ADVISOR\n", 'the script: it is empty; write for example "app: NAME"'),
    ("#ADVISOR work: much\n",
     'line 1 of the script: work: expected a number such as 8.0e15, not "much"'),
    ("#ADVISOR share: maybe\n", 'line 1 of the script: share: expected true or false, not "maybe"'),
    ("#ADVISOR share: 'true'\n", 'line 1 of the script: share: expected true or false, not "true"'),
    ("#ADVISOR share: 1\n", 'line 1 of the script: share: expected true or false, not "1"'),
    ("#ADVISOR flexible: [gpus]\n",
     'line 1 of the script: flexible: expected a list of partition, gpu_type, not "gpus"'),
    ("#ADVISOR kernels: [a]\n",
     'line 1 of the script: kernels: expected "NAME: {on: …, work: …, memory: …}", not a list'),
    ("#ADVISOR kernels:\n#ADVISOR   k: {on: []}\n",
     'line 2 of the script: kernel "k": on: the list is empty; expected cpu, gpu or a GPU type, or a list of them'),
    ("#ADVISOR kernels:\n#ADVISOR   k: {on: rm -rf}\n",
     'line 2 of the script: kernel "k": on: expected cpu, gpu or a GPU type, or a list of them, not "rm -rf"'),
    ("#ADVISOR kernels:\n#ADVISOR   k: {work: fast}\n",
     'line 2 of the script: kernel "k": work: expected a number such as 8.0e15, not "fast"'),
    ("#ADVISOR kernels:\n#ADVISOR   k: {work: .inf}\n",
     'line 2 of the script: kernel "k": work: expected a number such as 8.0e15, not ".inf"'),
    ("#ADVISOR kernels:\n#ADVISOR   k: {memory: -4G}\n",
     'line 2 of the script: kernel "k": memory: expected bytes, such as 512M, 4G or 1.5T, not "-4G"'),
    ("#ADVISOR kernels:\n#ADVISOR   k: {memory: 9999P}\n",
     'line 2 of the script: kernel "k": memory: "9999P" is more than any machine has'),
    ("#ADVISOR kernels: {a: , b: }\n#ADVISOR edges: [\n#ADVISOR   [a, b],\n#ADVISOR   [b, a],\n#ADVISOR ]\n",
     'line 4 of the script: edges: "a" → "b" → "a" is a cycle; a dataflow graph has none'),
    ("#ADVISOR kernels: {decode: }\n#ADVISOR edges: [[decode, decoed]]\n",
     'line 2 of the script: edges: there is no kernel "decoed" (did you mean "decode"?)'),
    ("#ADVISOR kernels: {a: , b: }\n#ADVISOR edges: [[a, b, big]]\n",
     'line 2 of the script: edge "a" to "b": size: expected bytes, such as 512M, 4G or 1.5T, not "big"'),
    ("#ADVISOR edges: [[a]]\n", "line 1 of the script: edges: an edge is [FROM, TO] or [FROM, TO, SIZE]"),
    ("#ADVISOR edges: [a, b]\n", 'line 1 of the script: edges: expected [FROM, TO, SIZE], not "a"'),
    ("#ADVISOR app: &x y\n", "line 1 of the script: YAML anchors (&name) are not allowed"),
    ("#ADVISOR app: x\n#ADVISOR workflow: *x\n", "line 2 of the script: YAML aliases (*name) are not allowed"),
    ("#ADVISOR app: !!python/object/apply:os.system [id]\n", "line 1 of the script: YAML tags (!name) are not allowed"),
    ("#ADVISOR app: x\n#ADVISOR ---\n#ADVISOR app: y\n",
     "line 2 of the script: a second YAML document; one is all that an annotation may have"),
    ("#ADVISOR app: \"a\\x07b\"\n",
     'line 1 of the script: app: the name "a\\x07b" holds a character that cannot be printed'),
    ("#ADVISOR app: a\x00b\n", "line 1 of the script: not valid YAML: control characters are not allowed"),
    ("#ADVISOR app: x\n#ADVISOR workflow: \udc80\n", "line 2 of the script: not valid UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "said"), GOLDEN)
def test_the_user_is_told_what_is_wrong_and_on_which_line(head, said):
    with pytest.raises(AnnotationError) as error:
        find(head, {}, None, None)
    assert str(error.value) == f"slurm-advisor: {said}; the job is placed as if it had no annotation"


def test_other_places_are_named_as_the_user_knows_them():
    for arguments, where in (
        ((None, {"ADVISOR_DFG": "app: x\nap: y"}, None, None), "line 2 of ADVISOR_DFG: "),
        ((None, {"ADVISOR_DFG": "ap: y"}, None, None), "ADVISOR_DFG: "),
        ((None, {}, "advisor:{ap: y}", None), "--extra: "),
        ((None, {}, None, "x advisor:{ap: y}"), "--comment: "),
        ((None, {}, None, "x advisor:{ap: y"), "--comment: "),
    ):
        with pytest.raises(AnnotationError) as error:
            find(*arguments)
        assert str(error.value).startswith(f"slurm-advisor: {where}")


def test_graphs_at_the_limits_are_read_and_above_them_refused():
    def graph(kernels, edges):
        names = ", ".join(f"k{i}: {{}}" for i in range(kernels))
        ring = ",\n".join(f"[k{i % 511},k{i % 511 + 1}]" for i in range(edges))
        return f"kernels: {{{names}}}\nedges: [{ring}]"

    found = in_environment(graph(512, 4096))
    assert (len(found.kernels), len(found.edges)) == (512, 4096)
    assert message(graph(513, 0)) == "kernels: more than 512"
    assert message(graph(512, 4097)) == "edges: more than 4096"
    assert in_environment("app: x #" + "y" * (65536 - 8)).app == "x"
    assert message("app: x #" + "y" * (65537 - 8)) == "65537 bytes are more than the 65536 that an annotation may have"


BILLION_LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    "hostile",
    [
        BILLION_LAUGHS,
        "kernels: " + BILLION_LAUGHS.replace("\n", ", "),
        "[" * 65536,
        "{" * 65536,
        "edges: " + "[" * 65000,
        "kernels: " + "{a: " * 16000,
        "- " * 32768,
        "? " * 32768,
        "kernels: {" + ",".join(f"k{i}: {{}}" for i in range(5000)) + "}",
        "kernels: {k: {on: [" + "gpu," * 16000 + "]}}",
        "edges: [" + "[a,b]," * 10000 + "]",
        "edges: [" + '["a",b],' * 8000 + "]",
        "flexible: [" + "partition," * 6000 + "]",
        "app: '; DROP TABLE decisions; --' $(id) `id`",
    ],
)
def test_hostile_text_is_refused_after_a_bounded_number_of_steps(hostile, monkeypatch):
    taken = []

    class Counting(document._Parser):
        def get_event(self):
            taken.append(1)
            return super().get_event()

    monkeypatch.setattr(document, "_Parser", Counting)
    annotations._read_long.cache_clear()
    annotations._read_short.cache_clear()
    with pytest.raises(AnnotationError):
        in_environment(hostile)
    assert len(taken) <= document.MAX_EVENTS


def test_shell_and_sql_text_is_only_ever_a_name():
    name = "x'); DROP TABLE decisions; -- $(touch /tmp/pwned) ../../etc/passwd"
    assert find(None, {"ADVISOR_DFG": json.dumps({"app": name})}, None, None).app == name


@given(
    st.text(alphabet=st.characters(), max_size=300), st.sampled_from(["", "app: ", "kernels: ", "edges: [", "{", "a\n"])
)
@example("\ud800", "")
@example("\x00", "app: ")
@settings(max_examples=400)
def test_whatever_is_written_ends_in_an_annotation_none_or_a_message(text, prefix):
    for arguments in (
        (f"#!/bin/sh\n#ADVISOR {prefix}{text}", {}, None, None),
        ("\n".join(f"#ADVISOR {line}" for line in (prefix + text).split("\n")), {}, None, None),
        (None, {"ADVISOR_DFG": prefix + text, "ADVISOR_APP": text}, None, None),
        (None, {}, text, "advisor:" + text),
        (None, {}, '{"advisor": ' + text + "}", "advisor:{" + text + "}"),
    ):
        try:
            find(*arguments)
        except AnnotationError as error:
            assert "\n" not in str(error) and len(str(error)) < 400


YAMLISH = st.lists(
    st.sampled_from(
        ["app", "kernels", "edges", "on", "work", "memory", ": ", ", ", "[", "]", "{", "}", "\n", "  ", "- ", "a", "b",
         "4G", "&a ", "*a", "!!int ", "'", '"', "# ", "---\n", "? ", "| ", "off", "1e3", "\t", "%TAG ! x\n"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@given(YAMLISH)
@settings(max_examples=600)
def test_nearly_valid_yaml_ends_the_same_way(text):
    try:
        found = in_environment(text)
    except AnnotationError:
        return
    assert found is None or found.source == "environment"


names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)
plain_names = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)


@st.composite
def graphs(draw, name):
    kernel_names = draw(st.lists(name, min_size=0, max_size=8, unique=True))
    kernels = tuple(
        Kernel(
            each,
            tuple(draw(st.lists(st.sampled_from(["cpu", "gpu", "v100", "a100"]), min_size=1, unique=True))),
            draw(st.floats(0, 1e30)),
            draw(st.integers(0, 1 << 60)),
        )
        for each in kernel_names
    )
    pairs = [(a, b) for i, a in enumerate(kernel_names) for b in kernel_names[i + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=12)) if pairs else []
    edges = tuple(Edge(a, b, draw(st.integers(0, 1 << 60))) for a, b in chosen)
    return Annotation(
        app=draw(st.none() | name),
        kernels=kernels,
        edges=edges,
        share=draw(st.booleans()),
        requeue=draw(st.booleans()),
        workflow=draw(st.none() | name),
        work=draw(st.sampled_from([0.0, 1.0, 3.5e6])),
        flexible=tuple(draw(st.lists(st.sampled_from(document.FLEXIBLE), unique=True))),
        source="environment",
    )


def as_plain(graph):
    fields = {
        "edges": [[e.source, e.target, e.size] for e in graph.edges],
        "kernels": {k.name: {"on": list(k.on), "work": k.work, "memory": k.memory} for k in graph.kernels},
        "share": graph.share,
        "requeue": graph.requeue,
        "work": graph.work,
        "flexible": list(graph.flexible),
    }
    return fields | {key: getattr(graph, key) for key in ("app", "workflow") if getattr(graph, key) is not None}


@given(graphs(names))
def test_a_valid_graph_comes_back_as_it_was_written_in_json_and_in_yaml(graph):
    assert in_environment(json.dumps(as_plain(graph), ensure_ascii=False)) == graph
    assert in_environment(yaml.safe_dump(as_plain(graph), allow_unicode=True, sort_keys=False)) == graph


@given(graphs(plain_names), st.sampled_from(["", "\n", " \n "]))
def test_plainly_written_edges_mean_the_same_as_edges_read_by_the_yaml_parser(graph, space):
    fields = as_plain(graph)
    rows = [f"[{space}{e.source}, {e.target},{space} {e.size}]" for e in graph.edges]
    edges = f"edges: [{space}{f',{space}'.join(rows)}{space}]"
    rest = "\n".join(f"{key}: {json.dumps(value)}" for key, value in fields.items() if key != "edges")
    unquoted = rest.replace('"', "")
    for text in (f"{unquoted}\n{edges}", f"{edges}\n{rest}"):
        try:
            found = in_environment(text)
        except AnnotationError:  # a plain name may be a word that YAML reads otherwise, such as "-"
            raise AssertionError(text) from None
        assert (found.kernels, found.edges) == (graph.kernels, graph.edges)


def test_the_same_text_read_twice_is_the_same_and_errors_stay_errors():
    for _ in range(2):
        assert find(DESIGN, {}, None, None) == GRAPH
        assert message("ap: x") == 'unknown key "ap" (did you mean "app"?)'


def test_without_the_c_parser_everything_reads_the_same(monkeypatch):
    monkeypatch.setattr(document, "_Parser", yaml.SafeLoader)
    for head, said in GOLDEN[:4]:
        annotations._read_short.cache_clear()
        with pytest.raises(AnnotationError) as error:
            find(head, {}, None, None)
        assert said in str(error.value)
    assert find(DESIGN, {}, None, None) == GRAPH
