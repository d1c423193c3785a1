"""A patch as ``git format-patch`` writes it and ``git am`` reads it, the same bytes every time."""

from __future__ import annotations

import email.parser
import email.policy
import quopri
import re
import textwrap
from binascii import b2a_qp
from collections.abc import Iterable, Sequence
from email.header import Header

from normport.tools.diffs import git_diff, line_counts
from normport.tools.plural import many
from normport.tools.tree import FileChange, Patch

# git's own constant date in the separator, a hash of no commit, and an author who is no person:
# nothing here depends on when, where or by whom the patch was made.
_SEPARATOR = f"From {'0' * 40} Mon Sep 17 00:00:00 2001"
_AUTHOR = "normport <normport@localhost>"
_DATE = "Mon, 17 Sep 2001 00:00:00 +0000"
_FOOTER = b"-- \nnormport\n\n"
_WIDTH = 72
# What mailsplit, mailinfo and apply take for the end of the message.
_ENDS_MESSAGE = re.compile(r"(?:---|diff -|Index: |From |>From )")


def format_patch(
    patch: Patch,
    *,
    number: int = 1,
    total: int = 1,
    extra_trailers: Sequence[tuple[str, str]] = (),
    base_commit: str | None = None,
) -> bytes:
    """One mail: headers, why, trailers, diffstat, diff.

    number, total: its place, for ``[PATCH 1/2]``; a series of one says ``[PATCH]``.
    extra_trailers: after the patch's own, but before a sign-off, which stays last.
    base_commit: named behind the diff, where ``git am`` users look for it.

    Raises:
        ValueError: the subject has line breaks, or the message holds a line that git would take
            for the beginning of the diff.
    """
    prefix = f"[PATCH {number}/{total}]" if total > 1 else "[PATCH]"
    message = _message(patch.why, (*patch.trailers, *extra_trailers))
    diff = git_diff(patch.changes)
    body = message.encode() + b"---\n" + _diffstat(patch.changes).encode() + b"\n" + diff
    if base_commit is not None:
        body += f"\nbase-commit: {base_commit}\n".encode()
    body += _FOOTER
    if "\n" in patch.subject or not patch.subject.strip():
        raise ValueError(f"not one line: {patch.subject!r}")
    subject = patch.subject
    if not subject.isascii():
        subject = Header(subject, "utf-8", maxlinelen=10_000).encode()
    headers = [_SEPARATOR, f"From: {_AUTHOR}", f"Date: {_DATE}", f"Subject: {prefix} {subject}"]
    encoding = "quoted-printable" if b"\r" in body else "8bit"
    if encoding != "8bit":
        # `git am` drops a CR at a line's end unless it comes encoded.
        body = b"\n".join(b2a_qp(line, istext=False) for line in body.split(b"\n"))
    if encoding != "8bit" or not body.isascii():
        headers += ["MIME-Version: 1.0", "Content-Type: text/plain; charset=UTF-8"]
        headers += [f"Content-Transfer-Encoding: {encoding}"]
    return "\n".join([*headers, "", ""]).encode() + body


def diff_of(mail: bytes) -> bytes:
    """The diff in a mail that ``format_patch`` made; empty when there is none."""
    head, _, body = mail.partition(b"\n\n")
    lines = head.partition(b"\n")[2]
    fields = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(lines + b"\n\n")
    if fields.get("Content-Transfer-Encoding", "").lower() == "quoted-printable":
        body = quopri.decodestring(body)
    start = body.find(b"\ndiff --git ", body.find(b"\n---\n"))
    if start < 0:
        return b""
    end = body.rfind(_FOOTER)
    return body[start + 1 : end if end >= 0 else len(body)]


def _message(why: str, trailers: Iterable[tuple[str, str]]) -> str:
    paragraphs = [_wrapped(p) for p in re.split(r"\n\s*\n", why.strip()) if p.strip()]
    # A sign-off covers what stands above it, so it comes last.
    ordered = sorted(trailers, key=lambda trailer: trailer[0] == "Signed-off-by")
    block = "\n".join(f"{key}: {' '.join(value.split())}" for key, value in ordered)
    message = "\n\n".join([*paragraphs, block] if block else paragraphs)
    for line in message.splitlines():
        if _ENDS_MESSAGE.match(line):
            raise ValueError(f"git would not take this for a part of the message: {line!r}")
    return message + "\n" if message else ""


def _wrapped(paragraph: str) -> str:
    lines = paragraph.splitlines()
    # Tables, code and lists that the author laid out stay as they are.
    if all(len(line) <= _WIDTH for line in lines) or any(re.match(r"\s|[-*] ", s) for s in lines):
        return "\n".join(line.rstrip() for line in lines)
    return textwrap.fill(" ".join(lines), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _diffstat(changes: Iterable[FileChange]) -> str:
    real = [change for change in changes if change.before != change.after]
    counts = {change.path: line_counts(change) for change in real}
    if not counts:
        return ""
    name_width = max(map(len, counts))
    number_width = len(str(max(sum(count) for count in counts.values())))
    room = max(10, _WIDTH - name_width - number_width - 5)
    most = max(sum(count) for count in counts.values())
    lines = []
    for path, (added, removed) in counts.items():
        plus, minus = (_scaled(n, most, room) for n in (added, removed))
        graph = f"{'+' * plus}{'-' * minus}"
        total = added + removed
        lines.append(f" {path:<{name_width}} | {total:>{number_width}} {graph}".rstrip())
    added, removed = (sum(count[side] for count in counts.values()) for side in (0, 1))
    summary = f" {many(len(counts), 'file')} changed"
    if added or not removed:
        summary += f", {many(added, 'insertion')}(+)"
    if removed or not added:
        summary += f", {many(removed, 'deletion')}(-)"
    created = [f" create mode 100644 {c.path}" for c in real if c.before is None]
    return "\n".join([*lines, summary, *created]) + "\n"


def _scaled(count: int, most: int, room: int) -> int:
    if most <= room or count == 0:
        return count
    return max(1, count * room // most)
