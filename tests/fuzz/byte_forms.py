"""The bytes of a source text as editors of all kinds save it."""

from __future__ import annotations

import random
import re

from fuzz.choices import Choices

FORMS = (
    "plain", "crlf", "bom", "tabs", "no final newline", "form feeds", "trailing spaces", "wide",
    "two spaces", "crlf and bom", "some crlf", "latin-1", "cr", "many blank lines", "long",
)  # fmt: skip


def to_bytes(choices: Choices, text: str) -> bytes:
    """``text`` in the form that the seed says."""
    form = choices.rarely("bytes", FORMS, chance=0.5)
    rng = random.Random(f"{choices.seed}/bytes of")
    if form == "tabs":
        text = re.sub(r"(?m)^(?:    )+", lambda found: "\t" * (len(found[0]) // 4), text)
    elif form == "two spaces":
        text = re.sub(r"(?m)^(?:    )+", lambda found: "  " * (len(found[0]) // 4), text)
    elif form == "no final newline":
        text = text.rstrip("\n")
    elif form == "form feeds":
        text = re.sub(r"(?m)^(class |def )", r"\f\n\1", text)
    elif form == "trailing spaces":
        text = re.sub(r"(?m)(?<=[\w)])$", lambda _: rng.choice(("", " ", "  ", "\t")), text)
    elif form == "wide":
        text += "# 名前 \N{LINE SEPARATOR} \N{NEXT LINE} end\n"
    elif form == "many blank lines":
        text = text.replace("\n\n\n", "\n\n\n\n\n\n")
    elif form == "long":
        text += "".join(f"\n\ndef filler_{n}(x):\n    return x * {n}\n" for n in range(300))
    elif form == "latin-1":
        kept = text.encode("latin-1", "replace").replace(b"?", b"_")
        first, _, rest = kept.partition(b"\n")
        cookie = b"# -*- coding: latin-1 -*-\n"
        return first + b"\n" + cookie + rest if first.startswith(b"#!") else cookie + kept
    if form == "cr":
        return text.replace("\n", "\r").encode()
    if form == "some crlf":
        return re.sub(r"\n", lambda _: rng.choice(("\n", "\n", "\r\n")), text).encode()
    if form.startswith("crlf"):
        text = text.replace("\n", "\r\n")
    bom = b"\xef\xbb\xbf" if form.endswith("bom") else b""
    return bom + text.encode()
