"""The text of one replaced expression: on one line, broken over lines, its comments kept."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from normport.codemods.model import Edit, RefusedEdit

PRAGMAS = ("noqa", "type:", "pragma:", "pylint:", "pyright:", "mypy:", "isort:", "ruff:")


@dataclass(frozen=True)
class Argument:
    """One argument of the new call, with the comments it keeps from the old one."""

    text: str
    above: tuple[str, ...] = ()
    beside: str = ""


@dataclass(frozen=True)
class Replacement:
    """New text for one expression.

    flat: the text on one line, with a trailing comma if the call is to stay exploded.
    callee, arguments: its parts, None and empty unless it is a call with arguments.
    exploded: one argument per line is wanted, as the old call had it or a comment needs it.
    """

    flat: str
    callee: str | None = None
    arguments: tuple[Argument, ...] = field(default=())
    exploded: bool = False

    def one_per_line(self, indent: str, unit: str) -> str:
        """The call with one argument per line; ``indent`` is the line's in which it starts."""
        lines = [f"{self.callee}("]
        for argument in self.arguments:
            lines += [indent + unit + comment for comment in argument.above]
            beside = f"  {argument.beside}" if argument.beside else ""
            lines.append(f"{indent}{unit}{argument.text},{beside}")
        return "\n".join([*lines, f"{indent})"])

    def hugged(self, indent: str, unit: str) -> str:
        """The call with all arguments on one indented line."""
        inside = ", ".join(argument.text for argument in self.arguments)
        return f"{self.callee}(\n{indent}{unit}{inside}\n{indent})"

    def laid_out(self, before: str, after: str, unit: str, limit: int) -> str:
        """The layout for a place with ``before`` and ``after`` on the same line."""
        indent = before[: len(before) - len(before.lstrip())]
        tab = len(unit) if unit.strip("\t") else 4
        room = limit - _width(_without_pragma(after), tab)
        if not self.arguments:
            return self.flat
        if self.exploded:
            return self.one_per_line(indent, unit)
        if _width(before + self.flat, tab) <= room:
            return self.flat
        hugged = self.hugged(indent, unit)
        if all(_width(line, tab) <= limit for line in hugged.split("\n")):
            return hugged
        return self.one_per_line(indent, unit)


def replacement(edit: Edit, old: cst.BaseExpression) -> Replacement:
    """The new text for an edit; RefusedEdit where a comment of the old call has no place."""
    try:
        new = cst.parse_expression(edit.new)
    except cst.ParserSyntaxError:
        new = None
    if new is None or "\n" in edit.new or "\r" in edit.new:
        raise RefusedEdit(
            f"line {edit.line}: the replacement {edit.new!r} is not an expression on one line."
        )
    texts = _argument_texts(new) if isinstance(new, cst.Call) else []
    if not isinstance(new, cst.Call) or not texts:
        for comment in _comments(edit.old):
            raise _lost(edit, comment)
        return Replacement(edit.new)
    callee = cst.Module([]).code_for_node(new.func)
    arguments, commented = _with_comments(edit, old, texts)
    exploded = commented or (isinstance(old, cst.Call) and _is_exploded(edit.old, old))
    flat = f"{callee}({', '.join(texts)}{',' if exploded else ''})"
    return Replacement(flat if exploded else edit.new, callee, arguments, exploded)


def _argument_texts(call: cst.Call) -> list[str]:
    module = cst.Module([])
    bare = [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in call.args]
    return [module.code_for_node(arg).strip() for arg in bare]


def _is_exploded(text: str, call: cst.Call) -> bool:
    """True for a call over several lines with a magic trailing comma."""
    return (
        ("\n" in text or "\r" in text)
        and bool(call.args)
        and isinstance(call.args[-1].comma, cst.Comma)
    )


def _with_comments(
    edit: Edit, old: cst.BaseExpression, texts: Sequence[str]
) -> tuple[tuple[Argument, ...], bool]:
    """The new arguments with the comments of the old ones that survive with the same text."""
    above: dict[int, list[str]] = {}
    beside: dict[int, str] = {}
    comments = _comments(edit.old)
    olds = [_normal(text) for text in _argument_texts(old)] if isinstance(old, cst.Call) else []
    news = [_normal(text) for text in texts]
    for comment in comments:
        if comment.owner is None or news.count(olds[comment.owner]) != 1:
            raise _lost(edit, comment)
        index = news.index(olds[comment.owner])
        if comment.own_line:
            above.setdefault(index, []).append(comment.text)
        elif index in beside:
            raise _lost(edit, comment)
        else:
            beside[index] = comment.text
    arguments = tuple(
        Argument(text, tuple(above.get(index, ())), beside.get(index, ""))
        for index, text in enumerate(texts)
    )
    return arguments, bool(comments)


@dataclass(frozen=True)
class _Comment:
    """A comment inside an expression.

    line: counted from 0 at the expression's first line. own_line: nothing stands before it.
    owner: the index of the call's argument that it is about, None for anything else.
    """

    text: str
    line: int
    own_line: bool
    owner: int | None


def _comments(expression: str) -> list[_Comment]:
    """The comments in an expression and the arguments of the outermost call they belong to."""
    if "#" not in expression:
        return []
    readline = io.StringIO(re.sub(r"\r\n?", "\n", expression)).readline
    skipped = {tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(readline) if token.type not in skipped]
    code = [i for i, token in enumerate(tokens) if token.type != tokenize.COMMENT]
    opening = _last_opening(tokens)
    found: list[_Comment] = []
    depth = argument = 0
    for i, token in enumerate(tokens):
        if token.type != tokenize.COMMENT:
            depth += (token.string in "([{") - (token.string in ")]}") if _is_op(token) else 0
            argument += i > opening and depth == 1 and _is_op(token) and token.string == ","
            continue
        before = tokens[max((k for k in code if k < i), default=0)]
        after = tokens[min(k for k in code if k > i)]
        own_line = before.end[0] != token.start[0]
        owner: int | None = None
        if i > opening and depth == 1:
            if own_line and before.string in "(," and after.string != ")":
                owner = argument
            elif not own_line and before.string == ",":
                owner = argument - 1
            elif not own_line and before.string != "(" and after.string in ",)":
                owner = argument
        found.append(_Comment(token.string, token.start[0] - 1, own_line, owner))
    return found


def _is_op(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.OP


def _last_opening(tokens: Sequence[tokenize.TokenInfo]) -> int:
    """The index of the parenthesis that the last one closes."""
    stack: list[int] = []
    opening = 0
    for i, token in enumerate(tokens):
        if _is_op(token) and token.string in "([{":
            stack.append(i)
        elif _is_op(token) and token.string in ")]}":
            opening = stack.pop()
    return opening


def _normal(argument: str) -> str:
    """An argument without the ways of writing it that do not matter."""
    # On a line of its own, since the last argument's text may end with a comment.
    return ast.dump(ast.parse(f"f({argument}\n)", mode="eval"))


def _lost(edit: Edit, comment: _Comment) -> RefusedEdit:
    return RefusedEdit(
        f"line {edit.line + comment.line}: the comment {comment.text!r} inside the replaced "
        "expression belongs to nothing that stays; move it out of the call first."
    )


def _width(text: str, tab: int) -> int:
    return len(text.expandtabs(tab))


def _without_pragma(after: str) -> str:
    """What follows on the line, less a trailing pragma comment, which no formatter counts."""
    return re.sub(r"\s*#\s*(?:" + "|".join(PRAGMAS) + r").*$", "", after)
