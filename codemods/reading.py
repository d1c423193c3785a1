"""Runs one norm class symbolically, as one construction and one call of it make it run."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from normport.codemods.checks import weight_objection
from normport.codemods.construction import default
from normport.codemods.evaluate import Evaluator
from normport.codemods.module_info import ModuleInfo
from normport.codemods.outcomes import Outcome, outcome
from normport.codemods.recognise import NotStandard, recognise
from normport.codemods.values import Const, Source, Value, Weight


class NormReader:
    """Reads the class ``node`` of the file ``home``.

    reached: its methods that the constructor or forward called, in any reading so far.
    overwrites: whether its forward changes a float32 input in place.
    """

    def __init__(self, home: ModuleInfo, node: ast.ClassDef) -> None:
        self.home = home
        self.node = node
        self.reached: set[str] = set()
        self.overwrites = False

    @property
    def init(self) -> ast.FunctionDef | None:
        return self.method("__init__")

    def method(self, name: str) -> ast.FunctionDef | None:
        """The method that the class has under ``name`` in the end."""
        for statement in reversed(self.node.body):
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return statement
        return None

    @property
    def is_unusual(self) -> bool:
        """Whether a method of it has no ``self`` that can be followed."""
        methods = [self.method(name) for name in ("__init__", "forward")]
        return any(m is not None and (m.args.posonlyargs or not m.args.args) for m in methods)

    def blind(self) -> Outcome | NotStandard | None:
        """What the class computes with nothing known of its arguments; None: no norm at all.

        Two readings, because a flag that is not known hides what depends on it: with every
        argument unknown, and with the defaults.
        """
        init = self.init
        names = [a.arg for a in (*init.args.args[1:], *init.args.kwonlyargs)] if init else []
        unknown: dict[str, Value] = {name: Source(name, name) for name in names}
        defaults = dict(unknown)
        if init is not None:
            pairs = zip(reversed(init.args.args), reversed(init.args.defaults), strict=False)
            defaults |= {
                a.arg: value
                for a, node in pairs
                if (value := default(self.home, node)) != Const(None)
            }
        found = self.read(unknown)
        return found or (self.read(defaults) if defaults != unknown else None)

    def read(
        self,
        arguments: Mapping[str, Value],
        positional: Sequence[Value] | None = None,
        keywords: Mapping[str, Value] | None = None,
    ) -> Outcome | NotStandard | None:
        """What an instance built with ``arguments`` computes, checked down to its parameters.

        positional, keywords: of a call; without them the input alone is passed, and what comes
        back in a tuple counts as not standard.
        """
        evaluator = Evaluator(self.home, self.node)
        instance = evaluator.construct(arguments)
        value = evaluator.forward(positional, keywords)
        found = outcome(value)
        if positional is None and isinstance(found, Outcome) and found.kind != "single":
            found = _alone(recognise(value))
        self.reached |= evaluator.reached
        self.overwrites |= instance.overwrites
        if not isinstance(found, Outcome):
            return found
        read = found.read
        if instance.doubtful:
            why = f"`{instance.doubtful[0]}` is imported or bound in more than one way"
            return NotStandard("NP221", why, read.computes)
        if instance.notes:
            note = instance.notes[0]
            return NotStandard("NP212", f"it also has {note}", read.computes)
        parameters = {
            name: value for name, value in instance.attributes.items() if isinstance(value, Weight)
        }
        extra = [name for name, value in parameters.items() if value != read.weight]
        if extra:
            why = (
                f"it has a parameter `{extra[0]}` that the standard layer lacks; take it out if no "
                "checkpoint has it, else leave the class"
            )
            return NotStandard("NP206", why, read.computes)
        if read.weight is not None:
            objected = weight_objection(read.weight, set(parameters), read.computes)
            if objected is not None:
                return NotStandard(*objected, read.computes)
        return found


def _alone(found: object) -> NotStandard | None:
    """A tuple is never read as a norm."""
    return found if isinstance(found, NotStandard) else None
