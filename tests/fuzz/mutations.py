"""Real files that somebody's editor, disk or merge went over."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Mutation = Callable[[random.Random, bytes], bytes]

_TOKEN = re.compile(rb"[A-Za-z_]\w*|[0-9.]+|\S")
_NORM = re.compile(rb"(?i)norm|sqrt|\bforward\b|\b__init__\b|nn\.Parameter|^class |^def |^import ")
_INSERTED = (
    b"\0", b"\f", b"\t", b"\r", b"\xff", b"\xe2\x80\xa8", b"\xc2\xa0", b"\\", b"\\\n", b"#",
    b"\"", b"'",
    b'"""', b"(", b")", b"[", b"]", b"{", b"}", b":", b",", b";", b"*", b"**", b"=", b":=", b"@",
    b"->", b"lambda: ", b"await ", b"yield ", b"not ", b"async ", b"del ", b"global x\n", b"f'{",
    b"if 1:\n", b"else:\n", b"match x:\n", b"import *\n", b"from . import *\n", b"class ", b"def ",
    b"_", "é".encode(), "\u017f".encode(), "名".encode(), b"0x", b"1_000_", b"1e999", b"None",
    b"...",
)  # fmt: skip


def mutate(rng: random.Random, data: bytes) -> bytes:
    """``data`` after one to four mutations."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(_ALL)(rng, data)
    return data


def _lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True) or [b""]


def _line(rng: random.Random, lines: list[bytes]) -> int:
    """A line, more often than not one that has to do with a norm."""
    telling = [number for number, line in enumerate(lines) if _NORM.search(line)]
    if telling and rng.random() < 0.7:
        return min(len(lines) - 1, max(0, rng.choice(telling) + rng.choice((-1, 0, 0, 1, 2))))
    return rng.randrange(len(lines))


def _deleted(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    first = _line(rng, lines)
    del lines[first : first + rng.choice((1, 1, 1, 2, 5, 40))]
    return b"".join(lines)


def _doubled(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    first = _line(rng, lines)
    part = lines[first : first + rng.choice((1, 1, 1, 2, 5, 40))]
    return b"".join([*lines[:first], *part, *lines[first:]])


def _truncated_line(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    number = _line(rng, lines)
    kept = lines[number][: rng.randrange(len(lines[number]) + 1)]
    lines[number] = kept + rng.choice((b"\n", b""))
    return b"".join(lines)


def _truncated_file(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    end = _line(rng, lines)
    return b"".join(lines[:end]) + lines[end][: rng.randrange(len(lines[end]) + 1)]


def _moved(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    line = lines.pop(_line(rng, lines))
    lines.insert(rng.randrange(len(lines) + 1), line)
    return b"".join(lines)


def _random_bytes(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    gone = rng.choice((0, 0, 1, 3))
    return data[:place] + rng.randbytes(rng.choice((1, 1, 2, 8))) + data[place + gone :]


def _inserted(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    number = _line(rng, lines)
    tokens = [0, *(found.start() for found in _TOKEN.finditer(lines[number]))]
    place = rng.choice(tokens)
    lines[number] = lines[number][:place] + rng.choice(_INSERTED) + lines[number][place:]
    return b"".join(lines)


def _swapped_tokens(rng: random.Random, data: bytes) -> bytes:
    """Two tokens change places: of one line, or of two lines."""
    lines = _lines(data)
    first = _line(rng, lines)
    second = first if rng.random() < 0.5 else _line(rng, lines)
    spans = [
        rng.choice(found)
        for number in (first, second)
        if (found := [m.span() for m in _TOKEN.finditer(lines[number])])
    ]
    if len(spans) < 2 or (first == second and spans[0] == spans[1]):
        return data
    if first == second:
        (a, b), (c, d) = sorted(spans)
        line = lines[first]
        lines[first] = line[:a] + line[c:d] + line[b:c] + line[a:b] + line[d:]
        return b"".join(lines)
    (a, b), (c, d) = spans
    one, two = lines[first], lines[second]
    lines[first] = one[:a] + two[c:d] + one[b:]
    lines[second] = two[:c] + one[a:b] + two[d:]
    return b"".join(lines)


def _renamed(rng: random.Random, data: bytes) -> bytes:
    """One name becomes another one of the file, everywhere or in one place."""
    names = list(dict.fromkeys(re.findall(rb"[A-Za-z_]\w*", data)))
    if len(names) < 2:
        return data
    old, new = rng.sample(names, 2)
    pattern = re.compile(rb"\b" + old + rb"\b")
    return pattern.sub(lambda _: new, data, count=rng.choice((0, 1)))


def _deleted_token(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    number = _line(rng, lines)
    tokens = [found.span() for found in _TOKEN.finditer(lines[number])]
    if tokens:
        start, end = rng.choice(tokens)
        lines[number] = lines[number][:start] + lines[number][end:]
    return b"".join(lines)


def _indented(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    first = _line(rng, lines)
    last = first + rng.choice((1, 3, 20))
    more = rng.choice((b"    ", b"\t", b" "))
    outward = rng.random() < 0.5
    for number in range(first, min(last, len(lines))):
        line = lines[number]
        lines[number] = line.removeprefix(more) if outward else more + line
    return b"".join(lines)


def _other_ends(rng: random.Random, data: bytes) -> bytes:
    ends = rng.choice((b"\r\n", b"\r", b"\f\n", b"\x0b\n", b" \n"))
    if rng.random() < 0.5:
        return data.replace(b"\n", ends)
    lines = _lines(data)
    number = _line(rng, lines)
    lines[number] = lines[number].replace(b"\n", ends)
    return b"".join(lines)


def _nested(rng: random.Random, data: bytes) -> bytes:
    """An expression, or branches, deep enough for a recursion to reach its end."""
    depth = rng.choice((50, 150, 500, 3000))
    text = rng.choice(
        (
            b"x = " + b"(" * depth + b"1" + b")" * depth,
            b"x = " + b"-" * depth + b"1",
            b"x = 1" + b" + 1" * depth,
            b"x = a" + b".b()" * depth,
            b"if 0: pass\n" + b"elif 0: pass\n" * depth,
            b"x = " + b"[" * depth + b"]" * depth,
        )
    )
    lines = _lines(data)
    at = rng.choice((0, len(lines)))
    return b"".join([*lines[:at], b"\n", text, b"\n", *lines[at:]])


_ALL: tuple[Mutation, ...] = (
    *(_deleted, _doubled, _truncated_line, _truncated_file, _moved, _random_bytes, _inserted),
    *(_swapped_tokens, _swapped_tokens, _swapped_tokens, _renamed, _renamed, _deleted_token),
    *(_deleted_token, _indented, _other_ends),
)
_ALL = (*_ALL, *_ALL, *_ALL, _nested)
