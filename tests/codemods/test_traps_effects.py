"""What a file does when it is imported, or by name, and must not lose with a norm class."""

from __future__ import annotations

import re

import pytest
from norms import LAYER, MODEL, changed, converted

from normport.codemods.effects import is_quiet

CLASS = "class N(nn.Module)"
ANNOTATED = ("eps=1e-6):", "eps=1e-6, args: Args | None = None):")

ARGS = {
    "decorated": "@register\nclass Args:\n    eps = 1e-6",
    "a decorated function": "@register\ndef Args(x):\n    return x",
    "of a base that may register": "class Args(Registered):\n    eps = 1e-6",
    "with a keyword": "class Args(nn.Module, key=1):\n    eps = 1e-6",
    "that acts in its body": "class Args:\n    register(1)",
    "with a call in its body": "class Args:\n    eps = register(1)",
    "with a call in a default": "def Args(x, y=register(1)):\n    return x",
    "with a call in an annotation": "def Args(x: register(1)):\n    return x",
    "with a call in a method's default": (
        "class Args:\n    def get(self, y=register(1)):\n        return y"
    ),
    "with a decorated method": "class Args:\n    @register\n    def get(self): ...",
    "of a base with a hook": (
        "class B:\n    def __init_subclass__(cls): ...\n\n\nclass Args(B): ..."
    ),
}


@pytest.mark.parametrize("definition", ARGS.values(), ids=ARGS)
@pytest.mark.parametrize("name", ["Args", "_Args"])
@pytest.mark.parametrize("use", ["annotated", "used"])
def test_a_definition_with_an_effect_stays(definition: str, name: str, use: str) -> None:
    definition = re.sub(r"\bArgs", name, definition)
    head = "from base import Registered, register\n"
    text = changed(MODEL, ("import torch\n", head + "import torch\n"))
    text = changed(text, (CLASS, f"{definition}\n\n\n{CLASS}"))
    if use == "annotated":
        text = changed(text, (ANNOTATED[0], ANNOTATED[1].replace("Args", name)))
    else:
        text = changed(
            text, ("return (h * self", f"h = h if True else {name}(h)\n        return (h * self")
        )
    new = converted(text)
    assert definition in new
    assert CLASS not in new
    assert head in new


HELPERS = {
    "plain": ("", "def rms(h):\n    return h.pow(2).mean(-1, keepdim=True)"),
    "compiled": ("", "@torch.compile\ndef rms(h):\n    return h.pow(2).mean(-1, keepdim=True)"),
}


@pytest.mark.parametrize(("head", "helper"), HELPERS.values(), ids=HELPERS)
def test_a_helper_without_effect_goes(head: str, helper: str) -> None:
    used = ("h.pow(2).mean(-1, keepdim=True)", "rms(h)")
    new = converted(changed(MODEL, used, (CLASS, f"{helper}\n\n\n{CLASS}")))
    assert "rms(" not in new


def test_a_public_class_that_only_annotations_name_stays() -> None:
    args = "class Args:\n    eps = 1e-6"
    assert args in converted(changed(MODEL, ANNOTATED, (CLASS, f"{args}\n\n\n{CLASS}")))
    private = (CLASS, f"{args.replace('Args', '_Args')}\n\n\n{CLASS}")
    new = converted(changed(MODEL, (ANNOTATED[0], ANNOTATED[1].replace("Args", "_Args")), private))
    assert "_Args" not in new


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("from vllm.extra.ops import Kind", True),
        ("from vllm.model_executor.models.other import Kind", True),
        ("from vllm.logger import Kind", False),
        ("from vllm.utils.torch_utils import Kind", False),
        ("from typing import Kind", False),
    ],
)
def test_an_import_that_may_register_stays(line: str, stays: bool) -> None:
    annotated = (ANNOTATED[0], ANNOTATED[1].replace("Args", "Kind"))
    new = converted(changed(MODEL, ("import torch\n", f"import torch\n{line}\n"), annotated))
    assert (line in new) is stays


def test_quiet_modules() -> None:
    assert is_quiet("vllm.config.model")
    assert is_quiet("torch.nn")
    assert not is_quiet("vllm.configuration")
    assert not is_quiet("flash_attn")


LOOKUPS = (
    "import sys\n\n\ndef get(name):\n    return getattr(sys.modules[__name__], name)\n",
    "from sys import modules\n\n\ndef get(name):\n    return getattr(modules[__name__], name)\n",
    "import importlib as i\n\n\ndef get(n):\n    return getattr(i.import_module(__name__), n)\n",
    "def get(name):\n    return globals()[name]\n",
)


@pytest.mark.parametrize("code", LOOKUPS)
def test_a_class_that_is_looked_up_stays(code: str) -> None:
    assert CLASS in converted(changed(MODEL, (LAYER, f"{LAYER}\n\n{code}")))


def test_a_walk_over_the_modules_looks_nothing_up() -> None:
    walk = "\n\ndef count(m):\n    return len(list(m.modules()))\n"
    assert CLASS not in converted(changed(MODEL, (LAYER, LAYER + walk)))


@pytest.mark.parametrize(
    "line",
    [
        "# fmt: off",
        "# isort: skip_file",
        "# ---------- norms ----------",
        "# ==========",
        "##########",
        "# Norms -----",
        "# region norms",
    ],
)
def test_a_pragma_or_a_banner_above_the_class_stays(line: str) -> None:
    above = f"# Of the file.\n{line}\n# Of the class.\n{CLASS}"
    new = converted(changed(MODEL, (CLASS, above)))
    assert f"# Of the file.\n{line}\n" in new
    assert "# Of the class." not in new
    assert CLASS not in new
