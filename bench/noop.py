"""A LibCST codemod that changes nothing: the least that one costs over a tree."""

from libcst.codemod import VisitorBasedCodemodCommand


class Noop(VisitorBasedCodemodCommand):
    DESCRIPTION = "Change nothing."
