"""Finds what a user told the advisor about a job, in the four places where it may stand.

The first one found wins: `#ADVISOR` lines in the script's leading comment block, `ADVISOR_DFG` in the
environment, `--extra`, an `advisor:` token in `--comment`. Users' text is only ever parsed, with limits;
what cannot be read becomes an `AnnotationError` whose text the user is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from advisor.dfg import document
from advisor.dfg.graph import Annotation
from advisor.dfg.scalars import name_problem

# sbatch reads its own directives up to the first line that is neither blank nor a comment; so do we.
_FIRST_COMMAND = re.compile(r"^[^\S\n]*[^\s#]", re.MULTILINE)
_LINE = re.compile(r"^#ADVISOR(?:[ \t](.*))?\r?$", re.MULTILINE)
# Nobody's comment begins so: it was meant for us.
_MISSPELLED = re.compile(r"^#ADVISOR([:=])[ \t]*(.*?)\r?$", re.MULTILINE)
_OFF = re.compile(r"\s*off\s*(?:#.*)?", re.IGNORECASE)
# `advisor: Prof. Smith` is what people write in comments: the token needs its brace, or `off`.
_TOKEN = re.compile(r"(?<![\w.@/-])advisor:\s*(?:(off)(?![\w.-])|(?=\{))", re.IGNORECASE)
_BRACES = re.compile(
    r"""(?<=[\s{\[,:])(?:"(?:[^"\\]|\\.)*+"|'(?:[^']|'')*+')|[{}]""",
    re.DOTALL,
)
_PLACES = {
    "script": "the script",
    "environment": "ADVISOR_DFG",
    "app": "ADVISOR_APP",
    "extra": "--extra",
    "comment": "--comment",
}


class AnnotationError(Exception):
    """An annotation that cannot be used. Its text is one line for the user; the job goes on without."""

    def __init__(self, message: str, line: int | None, source: str) -> None:
        self.message = message  # what is wrong, without where
        self.line = line  # in the script, or in the variable; from 1
        self.source = source  # script, environment, app, extra, comment
        place = _PLACES[source]
        where = place if line is None else f"line {line} of {place}"
        super().__init__(f"slurm-advisor: {where}: {message}; the job is placed as if it had no annotation")


def find(
    script_head: str | None, environment: Mapping[str, str], extra: str | None, comment: str | None
) -> Annotation | None:
    """The annotation of a job, or None where there is none; raises `AnnotationError`.

    `ADVISOR=off` in the environment leaves the job alone whatever else is written, and `ADVISOR_APP`
    names the app where the annotation does not. `--extra` is only ours if it is an `advisor:` token as
    in `--comment` (`advisor:{app: lammps}`) or a JSON object with the key "advisor", since a site may
    use it otherwise (from 23.11, `extra_constraints` parses it).
    """
    if environment.get("ADVISOR", "").strip().lower() == "off":
        return Annotation(off=True, source="environment")
    found = (
        _in_script(script_head) or _in_environment(environment) or _in_extra(extra) or _in_comment(comment, "comment")
    )
    app = environment.get("ADVISOR_APP")
    if not app or (found and (found.app or found.off)):
        return found
    if problem := name_problem("app", app):
        raise AnnotationError(problem, None, "app")
    return msgspec.structs.replace(found or Annotation(source="environment"), app=app)


def _in_script(head: str | None) -> Annotation | None:
    if not head or "#ADVISOR" not in head:
        return None
    command = _FIRST_COMMAND.search(head)
    end = command.start() if command else len(head)
    lines = [(match.start(), match[1] or "") for match in _LINE.finditer(head, 0, end)]
    misspelled = list(_MISSPELLED.finditer(head, 0, end))
    # Whatever the other lines say, and however it is spelled.
    if any(map(_OFF.fullmatch, (*(line for _, line in lines), *(match[2] for match in misspelled)))):
        return Annotation(off=True, source="script")
    if misspelled:
        first = misspelled[0]
        raise AnnotationError(
            f'write "#ADVISOR " without "{first[1]}" after it', _line_at(head, first.start()), "script"
        )
    if not lines:
        return None
    try:
        return _read("\n".join(line for _, line in lines), "script")
    except AnnotationError as error:
        if error.line is None:
            raise
        at, _ = lines[min(error.line, len(lines)) - 1]
        raise AnnotationError(error.message, _line_at(head, at), "script") from None


def _line_at(head: str, at: int) -> int:
    return head.count("\n", 0, at) + 1


def _in_environment(environment: Mapping[str, str]) -> Annotation | None:
    text = environment.get("ADVISOR_DFG")
    return _read(text, "environment") if text and not text.isspace() else None


def _in_extra(extra: str | None) -> Annotation | None:
    if not extra or "advisor" not in extra:
        return None
    if extra.lstrip().startswith("{") and len(extra) <= document.MAX_BYTES:
        try:
            ours = msgspec.json.decode(extra, type=dict[str, msgspec.Raw]).get("advisor")
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            pass  # not JSON, so not that; it may still hold a token
        else:
            return _read(bytes(ours).decode(), "extra") if ours is not None else None
    return _in_comment(extra, "extra")


def _in_comment(text: str | None, source: str) -> Annotation | None:
    if not text or (token := _TOKEN.search(text)) is None:
        return None
    if token[1]:
        return Annotation(off=True, source=source)
    depth = 0
    for brace in _BRACES.finditer(text, token.end(), token.end() + document.MAX_BYTES):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if not depth:
            return _read(text[token.end() : brace.end()], source)
    raise AnnotationError('the "{" after "advisor:" is not closed', None, source)


def _read(text: str, source: str) -> Annotation:
    outcome = (_read_short if len(text) <= _SHORT else _read_long)(text)
    if isinstance(outcome, Annotation):
        return msgspec.structs.replace(outcome, source=source)
    message, line = outcome
    # A line number helps in a script, and where there are several; "line 1 of --comment" does not.
    several = source == "script" or "\n" in text
    raise AnnotationError(message, line + 1 if line is not None and several else None, source)


# Users submit the same script again and again. What was read is kept, bad ones too, within about
# 20 MB: a short text costs a few KB, the largest graph that is allowed about 1 MB.
_SHORT = 4096


def _outcome(text: str) -> Annotation | tuple[str, int | None]:
    try:
        return document.read(text)
    except document.Problem as problem:
        return problem.message, problem.line


_read_short = lru_cache(maxsize=512)(_outcome)
_read_long = lru_cache(maxsize=8)(_outcome)
