"""Source bytes as text and back, with every line, its ending and its offset kept as they stand."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from normport.codemods.model import RefusedEdit

# The three line ends of Python; form feed, vertical tab and the Unicode separators end no line.
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")


@dataclass(frozen=True)
class SourceText:
    """A file's text without its byte-order mark, and what is needed to write it back."""

    text: str
    encoding: str
    bom: bytes

    @cached_property
    def lines(self) -> list[str]:
        """All lines with their ends."""
        return LINE.findall(self.text)

    @cached_property
    def starts(self) -> list[int]:
        """The offset at which each line starts, and the text's length as last entry."""
        offsets = [0]
        for line in self.lines:
            offsets.append(offsets[-1] + len(line))
        return offsets

    @cached_property
    def newline(self) -> str:
        """The line end that most lines have; ``\\n`` in a file of one line."""
        ends = Counter(re.findall(r"\r\n|\r|\n", self.text))
        return ends.most_common(1)[0][0] if ends else "\n"

    def offset(self, line: int, column: int) -> int:
        """The offset of ``line`` (from 1) and ``column`` (from 0, in code points)."""
        return self.starts[line - 1] + column

    def line_at(self, offset: int) -> int:
        """The line, counted from 0, in which ``offset`` lies."""
        return min(bisect_right(self.starts, offset) - 1, max(len(self.lines) - 1, 0))

    def is_blank(self, index: int) -> bool:
        return not self.lines[index].strip()

    def is_comment(self, index: int) -> bool:
        return self.lines[index].lstrip().startswith("#")

    def encode(self, text: str) -> bytes:
        """``text`` in the file's encoding; RefusedEdit where a character has no code in it."""
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise RefusedEdit(
                f"the new text has {error.object[error.start]!r}, "
                f"which the file's encoding {self.encoding} cannot write."
            ) from error


def decode(source: bytes) -> SourceText:
    """The text of a Python file, by its byte-order mark or PEP 263 cookie.

    Raises RefusedEdit where the bytes are not valid in that encoding or would not come back.
    """
    bom = codecs.BOM_UTF8 if source.startswith(codecs.BOM_UTF8) else b""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        text = source[len(bom) :].decode(encoding)
    except SyntaxError as error:
        raise RefusedEdit(f"the file's encoding could not be told: {error.msg}.") from error
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise RefusedEdit(f"line {line} is not valid {encoding}.") from error
    result = SourceText(text, encoding, bom)
    if result.encode(text) != source:
        raise RefusedEdit(f"the file's encoding {encoding} does not give the same bytes back.")
    return result
