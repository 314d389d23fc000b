"""The language of perf's metric expressions: text in, a tree out, errors with their position.

The grammar is perf's own (`tools/perf/util/expr.l` and `expr.y`): numbers, events and metrics,
`#constants`, arithmetic, comparison and bit operators, `a if c else b`, and the functions `min`, `max`,
`d_ratio`, `source_count`, `has_event` and `strcmp_cpuid_str`. Nothing here knows any CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

MAX_LENGTH = 64 * 1024
MAX_DEPTH = 200

Kind = Literal["number", "name", "constant", "operator", "word", "end"]


class ExpressionError(ValueError):
    """An expression that perf would not accept; says what is wrong and at which character."""

    def __init__(self, problem: str, text: str, position: int) -> None:
        start, end = max(0, position - 24), position + 24
        near = ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
        super().__init__(f"{problem} at character {position + 1}, near {near!r}")
        self.problem = problem
        self.position = position


@dataclass(frozen=True, slots=True)
class Number:
    """A literal number."""

    value: float


@dataclass(frozen=True, slots=True)
class Name:
    """An event, or another metric; which of the two, the table it stands in decides."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A property of the machine, lower case and without its `#`: `smt_on`, `num_packages`."""

    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """Unary minus."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """`left operator right`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Choice:
    """`then if condition else otherwise`."""

    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """`min`, `max` or `d_ratio` of two expressions."""

    function: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Query:
    """`source_count`, `has_event` or `strcmp_cpuid_str`: a question about a name, not about its value."""

    function: str
    name: str


Expression: TypeAlias = Number | Name | Constant | Negative | Binary | Choice | Call | Query

# Binding strength as in perf's `%left` lines; a higher number binds tighter.
PRECEDENCE = {"|": 1, "^": 2, "&": 3, "<": 4, ">": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_NEGATIVE = 7
_CALLS = frozenset({"min", "max", "d_ratio"})
_QUERIES = frozenset({"source_count", "has_event", "strcmp_cpuid_str"})
_WORDS = _CALLS | _QUERIES | {"if", "else"}
_LETTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.:@?")
_ESCAPABLE = frozenset("-,=")
_DIGITS = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class Token:
    """One word of an expression; `text` of a name has its escapes removed."""

    kind: Kind
    text: str
    position: int


def tokens(text: str) -> Iterator[Token]:
    """The words of an expression, ended by one of kind `end`."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters", text, MAX_LENGTH)
    at = 0
    while at < len(text):
        char = text[at]
        if char in " \t\n\r":
            at += 1
        elif char == "#":
            end = at + 1
            while end < len(text) and (text[end] in _LETTERS or text[end] == "-") and text[end] not in ":@?":
                end += 1
            if end == at + 1:
                raise ExpressionError("`#` without the name of a constant", text, at)
            yield Token("constant", text[at + 1 : end].lower(), at)
            at = end
        elif char in _LETTERS or char == "\\":
            # As in flex, the longest match wins, and a number wins a tie: `128` is a number, `128B` a name.
            number_end = _number_end(text, at)
            name, end = _name(text, at)
            if number_end >= end:
                yield Token("number", text[at:number_end], at)
                at = number_end
            else:
                yield Token("word" if name in _WORDS else "name", name, at)
                at = end
        elif char in PRECEDENCE or char in "(),":
            yield Token("operator", char, at)
            at += 1
        else:
            raise ExpressionError(f"unexpected {char!r}", text, at)
    yield Token("end", "", len(text))


def _name(text: str, at: int) -> tuple[str, int]:
    letters = []
    while at < len(text):
        if text[at] in _LETTERS:
            letters.append(text[at])
            at += 1
        elif text[at] == "\\":
            if at + 1 >= len(text) or text[at + 1] not in _ESCAPABLE:
                raise ExpressionError("`\\` must stand before `-`, `,` or `=`", text, at)
            letters.append(text[at + 1])
            at += 2
        else:
            break
    return "".join(letters), at


def _number_end(text: str, at: int) -> int:
    """Where a number that starts here ends; `at` itself when none does."""

    def digits(index: int) -> int:
        while index < len(text) and text[index] in _DIGITS:
            index += 1
        return index

    end = digits(at)
    if end < len(text) and text[end] == ".":
        fraction = digits(end + 1)
        if end == at and fraction == end + 1:
            return at
        end = fraction
    elif end == at:
        return at
    if end < len(text) and text[end] == "e":
        sign = end + 1 + (text[end + 1 : end + 2] == "-")
        exponent = digits(sign)
        if exponent > sign:
            end = exponent
    return end


def parse(text: str) -> Expression:
    """The tree of one metric expression; raises `ExpressionError`."""
    return _Parser(text).parse()


class _Parser:
    """Precedence climbing over the tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(tokens(text))
        self.index = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def take(self) -> Token:
        token = self.token
        self.index += 1
        return token

    def fail(self, problem: str, token: Token | None = None) -> ExpressionError:
        return ExpressionError(problem, self.text, (token or self.token).position)

    def expect(self, operator: str, where: str) -> None:
        if self.token.kind != "operator" or self.token.text != operator:
            raise self.fail(f"expected `{operator}` {where}")
        self.index += 1

    def parse(self) -> Expression:
        tree = self.choice()
        if self.token.kind != "end":
            raise self.fail(f"expected an operator or the end, not `{self.token.text}`")
        return tree

    def choice(self) -> Expression:
        """`expr [if expr else choice]`: the last `else` may hold another choice, so it leans right."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"nested deeper than {MAX_DEPTH}")
        branches: list[tuple[Expression, Expression]] = []
        tree = self.climb(0)
        while self.token.kind == "word" and self.token.text == "if":
            opening = self.take()
            condition = self.climb(0)
            if self.token.kind != "word" or self.token.text != "else":
                raise self.fail("`if` without `else`", opening)
            self.index += 1
            branches.append((condition, tree))
            tree = self.climb(0)
        for condition, then in reversed(branches):
            tree = Choice(condition, then, tree)
        self.depth -= 1
        return tree

    def climb(self, weakest: int) -> Expression:
        tree = self.operand()
        while self.token.kind == "operator":
            strength = PRECEDENCE.get(self.token.text, 0)
            if strength <= weakest:
                break
            operator = self.take().text
            tree = Binary(operator, tree, self.climb(strength))
        return tree

    def operand(self) -> Expression:
        token = self.take()
        if token.kind == "number":
            return Number(float(token.text))
        if token.kind == "name":
            return Name(token.text)
        if token.kind == "constant":
            return Constant(token.text)
        if token.kind == "operator" and token.text == "-":
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise self.fail(f"nested deeper than {MAX_DEPTH}")
            operand = self.climb(_NEGATIVE - 1)
            self.depth -= 1
            return Negative(operand)
        if token.kind == "operator" and token.text == "(":
            tree = self.choice()
            self.expect(")", f"to close the `(` at character {token.position + 1}")
            return tree
        if token.kind == "word" and token.text in _CALLS:
            self.expect("(", f"after `{token.text}`")
            left = self.choice()
            self.expect(",", f"between the two arguments of `{token.text}`")
            right = self.choice()
            self.expect(")", f"to close `{token.text}(`")
            return Call(token.text, left, right)
        if token.kind == "word" and token.text in _QUERIES:
            self.expect("(", f"after `{token.text}`")
            name = self.take()
            # A CPU id such as 0x410fd493 reads as a name, a bare 0 as a number; both are ids here.
            if name.kind not in ("name", "number"):
                raise self.fail(f"`{token.text}` needs one name", name)
            self.expect(")", f"to close `{token.text}(`")
            return Query(token.text, name.text)
        if token.kind == "end":
            raise self.fail("the expression ends where a value was expected", token)
        raise self.fail(f"expected a value, not `{token.text}`", token)


def walk(tree: Expression) -> Iterator[Expression]:
    """Every part of a tree, the whole first."""
    pending: list[Expression] = [tree]
    while pending:
        part = pending.pop()
        yield part
        match part:
            case Negative(operand):
                pending.append(operand)
            case Binary(_, left, right) | Call(_, left, right):
                pending += [right, left]
            case Choice(condition, then, otherwise):
                pending += [otherwise, then, condition]


def names(tree: Expression) -> tuple[str, ...]:
    """The events and metrics whose values it uses, in the order of their first use."""
    return tuple(dict.fromkeys(part.name for part in walk(tree) if isinstance(part, Name)))


def constants(tree: Expression) -> tuple[str, ...]:
    """The `#constants` it uses."""
    return tuple(dict.fromkeys(part.name for part in walk(tree) if isinstance(part, Constant)))
