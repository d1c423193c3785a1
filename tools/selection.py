"""Which rules a run reports: by code, or by the beginning of several (``NP1``, ``NP10``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normport.codemods.registry import ALL, all_rules, as_prefix, matched
from normport.tools.errors import UserError


@dataclass(frozen=True)
class Selection:
    """The rules that are reported and, where they convert, carried out.

    The longer of two prefixes wins, as with ruff: ``select NP101, ignore NP1`` keeps NP101. Of
    two equal ones ``ignore`` does.
    """

    select: tuple[str, ...] = (ALL,)
    ignore: tuple[str, ...] = ()

    def keeps(self, code: str) -> bool:
        """Whether findings of ``code`` are reported."""
        return _longest(self.select, code) > _longest(self.ignore, code)


EVERY_RULE = Selection()


def _longest(prefixes: Sequence[str], code: str) -> int:
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=0)


def parse_codes(texts: Sequence[str], where: str) -> tuple[str, ...]:
    """The prefixes in ``texts``, each of which may hold several between commas.

    where: the option or key, for messages.

    Raises UserError for one that no rule's code begins with.
    """
    found: list[str] = []
    for name in (part.strip() for text in texts for part in text.split(",")):
        prefix = as_prefix(name)
        if not matched(prefix):
            raise UserError(
                f"{where}: `{name}` is no rule's code and no code begins with it; the codes are "
                f"{', '.join(all_rules())}."
            )
        found.append(prefix)
    return tuple(dict.fromkeys(found))
