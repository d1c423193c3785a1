"""Whole model files: norm classes among everything else that stands in such files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fuzz.choices import Choices
from fuzz.norm_classes import NAMES, NormClass, norm_class
from fuzz.norm_sites import Site, site

HEADS = (
    "",
    "# SPDX-License-Identifier: Apache-2.0\n",
    "#!/usr/bin/env python3\n# A model.\n\n",
    '"""A model whose norms are its own: N."""\n\n',
    "from __future__ import annotations\n\n",
    '"""A model."""\n\nfrom __future__ import annotations\n\n',
    "# ruff: noqa: E501\n# isort: skip_file\n",
    "'''One''' ' two'\n",
)
TORCH = (
    "import torch\nfrom torch import nn\n",
    "import torch\nimport torch.nn as nn\n",
    "import torch; from torch import nn\n",
    "import math, torch\nfrom torch import nn\n",
    "from torch import nn\nimport torch\n",
    "import torch as torch\nfrom torch import nn as nn\n",
    "import torch\nfrom torch import (\n    nn,  # modules\n)\n",
    "try:\n    import torch\nexcept ImportError:\n    raise\nfrom torch import nn\n",
    "import torch\nfrom torch import Tensor, \\\n    nn\n",
    "if True:\n    import torch\nfrom torch import nn\n",
    "import torch\nimport torch.nn\nfrom torch import nn  # noqa: F401\n",
    "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n",
    "from torch import *\nimport torch\nfrom torch import nn\n",
)
VLLM = (
    "",
    "from vllm.logger import init_logger\n",
    "from vllm.model_executor.layers.layernorm import RMSNorm as Standard\n",
    "from vllm.model_executor.layers.layernorm import RMSNorm\n",
    "from vllm.model_executor.layers.layernorm import (\n    GemmaRMSNorm,  # Gemma's\n"
    "    RMSNorm,\n)\n",
    "import vllm.model_executor.layers.layernorm as layernorm\n",
    "import vllm.model_executor.layers.layernorm\n",
    "from torch.nn import RMSNorm\n",
    "from vllm.model_executor.layers import layernorm\n",
    "from vllm.model_executor.layers.layernorm import *\n",
    "try:\n    from vllm.model_executor.layers.layernorm import RMSNorm\n"
    "except ImportError:\n    RMSNorm = None\n",
    "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
    "    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm\n",
    "import transformers_modules_that_register as register  # side effects\n",
)
# What else stands between the norms and the layer, about the class N.
BETWEEN = (
    "",
    "def count(norm: N) -> int:\n    return 1\n",
    'def count(norm: "N") -> int:\n    return 1\n',
    "def count(norm):\n    # type: (N) -> int\n    return 1\n",
    "ALIAS = N\n",
    "class SubNorm(N):\n    pass\n",
    "def is_norm(module):\n    return isinstance(module, (N, nn.LayerNorm))\n",
    "NORMS = {'local': N}\n",
    "def make(*arguments, **options):\n    return N(*arguments, **options)\n",
    "def told(module):\n    return type(module).__name__ == 'N'\n",
    "DOC = N.__doc__\n",
    "def spell(name):\n    return globals()[name]\n",
    "Kinds = 'N | nn.Identity'\n",
    "class Holder:\n    norm_class = N\n",
    "class Holder:\n    norm: N\n    other: 'list[N] | None' = None\n",
    "def late() -> 'N':\n    return N(8, 1e-6)\n",
    "try:\n    from fast_norms import N\nexcept ImportError:\n    pass\n",
    "if torch.__version__ == '0':\n    class N(nn.Module):\n        pass\n",
    "# N is kept for old checkpoints.\n",
    "# fmt: off\nTABLE = [1,2,\n   3]\n# fmt: on\n",
    "def apply_all(modules, x):\n    return [m(x) for m in modules if m.__class__ is not N]\n",
    "@torch.no_grad()\ndef quiet(x):\n    return x\n",
    "import os  # late\n",
    "class Outer(nn.Module):\n    class N(nn.Module):\n        pass\n",
)
# What stands below everything.
TAILS = (
    "",
    "__all__ = ['Model', 'N']\n",
    "__all__ = ['Model']\n",
    "del N\n",
    'if __name__ == "__main__":\n    print(N)\n',
    "Model.norm_class = N\n",
    "N.forward = torch.no_grad()(N.forward)\n",
    "EntryClass = Model\n",
    "N_ = Layer\n",
    "# The end: N.\n",
    "assert Layer is not None, 'N'\n",
    "torch.serialization.add_safe_globals([Layer])\n",
    "def __getattr__(name):\n    raise AttributeError(name)\n",
)
# What the model does to its modules once they are built.
TWEAKS = (
    "",
    "for module in self.modules():\n    if isinstance(module, nn.Linear):\n"
    "        module.weight.data.zero_()",
    "for module in self.modules():\n    if isinstance(module, N):\n"
    "        module.weight.data.add_(1)",
    "for name, module in self.named_modules():\n    if name.endswith('norm1'):\n"
    "        module.tag = 1",
    "for parameter in self.parameters():\n    parameter.requires_grad_(False)",
    "self.layer.norm1.weight.data.fill_(2.0)",
    "self.layer.norm1.register_forward_hook(lambda m, a, out: out * 2)",
    "for module in self.modules():\n    if hasattr(module, 'eps'):\n        module.eps = 0.5",
    "for module in self.modules():\n    if type(module).__name__ == 'N':\n"
    "        module.requires_grad_(False)",
    "self.layer.norm1 = self.layer.norm1.to(torch.float32)",
    "self.layer.double().to(torch.get_default_dtype())",
    "self.apply(lambda m: setattr(m, 'seen', True))",
    "self.layer.get_submodule('norm1').eps = 0.5",
    "vars(self.layer.norm1).update(variance_epsilon=0.5, eps=0.5)",
)
OTHERS = (
    "",
    "from .model import N\n",
    "from .model import Layer\n",
    "from . import model\n\n\ndef make():\n    return model.N(8, 1e-6)\n",
    "from .model import *\n",
    "import model\n",
    "from .model import Layer\n\n\nclass Sub(Layer):\n    def forward(self, x):\n"
    "        return self.norm1(x, x)\n",
)


@dataclass(frozen=True)
class ModelFile:
    """Generated sources. files: name -> text; ``model.py`` defines ``Model(config)``.

    exact: the standard layers are bit-equal to every norm that may be converted.
    odd: the choices that were not the plain ones.
    """

    files: dict[str, str]
    exact: bool
    odd: dict[str, str]


def model_file(choices: Choices) -> ModelFile:
    """The sources of a seed."""
    first = choices.rarely("name", NAMES, chance=0.5)
    norms = [norm_class(choices, "a", first)]
    if choices.flag("second class", chance=0.3):
        norms.append(norm_class(choices, "b", "OtherNorm"))
    sites = [site(choices, "s1", "norm1", norms[0]), site(choices, "s2", "norm2", norms[-1])]
    if choices.flag("one site", chance=0.3):
        sites.pop()
    text = _text(choices, norms, sites)
    files = {"model.py": text}
    other = choices.rarely("other file", OTHERS, chance=0.1)
    if other:
        files |= {"__init__.py": "", "other.py": _about(other, norms[0].name)}
    return ModelFile(files, all(norm.exact for norm in norms), choices.odd)


def _about(text: str, name: str) -> str:
    """``text`` with the class N under its name."""
    return re.sub(r"\bN\b", name, text)


def _text(choices: Choices, norms: list[NormClass], sites: list[Site]) -> str:
    name = norms[0].name
    head = _about(choices.rarely("head", HEADS, chance=0.5), name)
    vllm = choices.rarely("vllm", VLLM, chance=0.4)
    torch = choices.rarely("torch", TORCH, chance=0.5)
    imports = "import functools\n\n" + torch + (f"\n{vllm}" if vllm else "")
    constants = "\nEPS = 1e-6\n\n\ndef apply(module, x):\n    return module(x)\n\n\n"
    constants += "def mark(cls):\n    return cls\n\n\nclass Base(nn.Module):\n    pass\n\n\n"
    above = choices.rarely("above", ("", "# A norm of our own.\n", "# ----\n\n"), chance=0.3)
    defined = "".join(
        f"{norm.helpers}\n\n{above}{norm.text}\n\n" if norm.helpers else f"{above}{norm.text}\n\n"
        for norm in norms
    )
    between = _about(choices.rarely("between", BETWEEN, chance=0.15), name)
    layer = _layer(choices, sites) + "\n\n" + _model(choices, name)
    if choices.flag("norms last", chance=0.1):
        body = f"{layer}\n\n{defined}{between}"
    elif choices.flag("in a branch", chance=0.04):
        indented = "".join(f"    {line}\n" if line else "\n" for line in defined.splitlines())
        body = f"if True:\n{indented}\n{between}\n\n{layer}"
    else:
        body = f"{defined}{between}\n\n{layer}"
    tail = _about(choices.rarely("tail", TAILS, chance=0.15), name)
    return head + imports + constants + body + (f"\n\n{tail}" if tail else "")


def _indented(text: str, depth: int) -> str:
    return "".join(f"{'    ' * depth}{line}\n" if line else "\n" for line in text.split("\n"))


def _layer(choices: Choices, sites: list[Site]) -> str:
    parameters = choices.rarely(
        "layer parameters",
        ("self, config, eps=1e-5", "self, config, eps=1e-5, *, RMSNorm=None, torch=torch"),
        chance=0.05,
    )
    comment = choices.rarely("layer comment", ("", "# The norms.", "# type: ignore"), chance=0.2)
    built = "\n".join([*([comment] if comment else []), *(site.built for site in sites)])
    called = "\n".join(site.called for site in sites)
    return (
        "class Layer(nn.Module):\n"
        f"    def __init__({parameters}):\n"
        "        super().__init__()\n"
        "        hidden = self.hidden = config.hidden_size\n"
        "        self.epsilon = config.rms_norm_eps\n"
        "        self.heads = config.heads\n"
        "        self.head_dim = config.head_dim\n"
        + _indented(built, 2)
        + "\n    def width_of(self, module):\n        return 2\n\n"
        "    def forward(self, x):\n" + _indented(called, 2) + "        return x\n"
    )


def _model(choices: Choices, name: str) -> str:
    tweak = _about(choices.rarely("tweak", TWEAKS, chance=0.12), name)
    base = choices.rarely("model base", ("Layer(config)", "Special(config)"), chance=0.1)
    special = "class Special(Layer):\n    def forward(self, x):\n"
    special += "        return super().forward(x) * 2\n\n\n"
    return (
        (special if "Special" in base else "")
        + "class Model(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n"
        f"        self.layer = {base}\n"
        + (_indented(tweak, 2) if tweak else "")
        + "\n    def forward(self, x):\n        return self.layer(x)\n"
    )
