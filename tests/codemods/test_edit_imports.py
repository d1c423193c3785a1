"""Imports join the block where isort puts them, and are refused where they would mislead."""

from __future__ import annotations

import random
import re
from textwrap import dedent

import pytest
from plans import LAYERNORM, check_noop, check_refused, check_transformed, is_formatted, lint, plan

from normport.codemods.edit import apply_plan
from normport.codemods.model import FilePlan

NORM = {LAYERNORM: ("RMSNorm",)}
BOTH = {LAYERNORM: ("RMSNorm", "GemmaRMSNorm")}

PLACES = {
    "into the block, sorted by module": (
        """\
        import torch
        from torch import nn

        from vllm.config import VllmConfig
        from vllm.model_executor.layers.linear import (
            QKVParallelLinear,
        )

        from .utils import maybe_prefix
        """,
        """\
        import torch
        from torch import nn

        from vllm.config import VllmConfig
        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
        from vllm.model_executor.layers.linear import (
            QKVParallelLinear,
        )

        from .utils import maybe_prefix
        """,
    ),
    "below the last of the block, above the comment of the next": (
        """\
        from vllm.config import VllmConfig

        # relative ones
        from .utils import maybe_prefix
        """,
        """\
        from vllm.config import VllmConfig
        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

        # relative ones
        from .utils import maybe_prefix
        """,
    ),
    "above the comment of the following": (
        """\
        import vllm
        # about linear
        from vllm.model_executor.layers.linear import Linear
        """,
        """\
        import vllm
        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
        # about linear
        from vllm.model_executor.layers.linear import Linear
        """,
    ),
    "a new block between third-party and relative": (
        """\
        import torch

        from .utils import maybe_prefix

        x = 1
        """,
        """\
        import torch

        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

        from .utils import maybe_prefix

        x = 1
        """,
    ),
    "a new block before the first": (
        """\
        # Licence

        from .utils import maybe_prefix
        """,
        """\
        # Licence

        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

        from .utils import maybe_prefix
        """,
    ),
    "a new block after the last, before a class": (
        """\
        from __future__ import annotations

        import torch


        class A:
            pass
        """,
        """\
        from __future__ import annotations

        import torch

        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm


        class A:
            pass
        """,
    ),
    "no imports, a docstring": (
        '''\
        """What it is."""

        x = 1
        ''',
        '''\
        """What it is."""

        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

        x = 1
        ''',
    ),
    "no imports, a docstring, a class with one line between": (
        '''\
        """What it is."""

        class A:
            pass
        ''',
        '''\
        """What it is."""

        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm


        class A:
            pass
        ''',
    ),
    "no imports, a commented class under a header": (
        """\
        # SPDX-License-Identifier: Apache-2.0

        # About A.
        class A:
            pass
        """,
        """\
        # SPDX-License-Identifier: Apache-2.0

        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm


        # About A.
        class A:
            pass
        """,
    ),
    "joins a statement on one line": (
        "from vllm.model_executor.layers.layernorm import LayerNorm, rms\n",
        "from vllm.model_executor.layers.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm, rms\n",
    ),
    "joins and explodes": (
        "from vllm.model_executor.layers.layernorm import LayerNorm, RMSNormGated\n",
        """\
        from vllm.model_executor.layers.layernorm import (
            GemmaRMSNorm,
            LayerNorm,
            RMSNorm,
            RMSNormGated,
        )
        """,
    ),
    "joins one name a line and keeps the comments": (
        """\
        from vllm.model_executor.layers.layernorm import (
            # the mean-subtracting one
            LayerNorm,  # not for us
            # with a gate
            RMSNormGated,  # mamba
        )  # all of them
        """,
        """\
        from vllm.model_executor.layers.layernorm import (
            GemmaRMSNorm,
            # the mean-subtracting one
            LayerNorm,  # not for us
            RMSNorm,
            # with a gate
            RMSNormGated,  # mamba
        )  # all of them
        """,
    ),
    "an alias of the same name": (
        "from vllm.model_executor.layers.layernorm import GemmaRMSNorm as Norm\n",
        """\
        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
        from vllm.model_executor.layers.layernorm import GemmaRMSNorm as Norm
        """,
    ),
    "one of two is there": (
        "from vllm.model_executor.layers.layernorm import RMSNorm\n",
        "from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm\n",
    ),
    "an alias is another name": (
        "from vllm.model_executor.layers.layernorm import RMSNorm as Norm\n",
        """\
        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
        from vllm.model_executor.layers.layernorm import RMSNorm as Norm
        """,
    ),
    "not inside TYPE_CHECKING or try": (
        """\
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from vllm.model_executor.layers.layernorm import LayerNorm
        try:
            import vllm.kernels
        except ImportError:
            pass
        """,
        """\
        from typing import TYPE_CHECKING

        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

        if TYPE_CHECKING:
            from vllm.model_executor.layers.layernorm import LayerNorm
        try:
            import vllm.kernels
        except ImportError:
            pass
        """,
    ),
    "in the block that has vLLM's imports": (
        """\
        import os

        os.environ["A"] = "1"

        from vllm.config import VllmConfig
        """,
        """\
        import os

        os.environ["A"] = "1"

        from vllm.config import VllmConfig
        from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
        """,
    ),
    "an empty file": (
        "",
        "from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm\n",
    ),
    "no newline at the end": (
        "import vllm",
        "import vllm\nfrom vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm\n",
    ),
}


@pytest.mark.parametrize("case", PLACES, ids=str)
def test_where_the_names_go(case: str) -> None:
    before, after = PLACES[case]
    check_transformed(before, after, plan(dedent(before), {}, BOTH))
    old, new = dedent(before).encode(), dedent(after).encode()
    if is_formatted(old) and not lint(old, "I"):
        assert is_formatted(new)
        assert lint(new, "I") == []


TORCH = {
    "there": ("import torch\n", None),
    "there with a part": ("import torch.distributed\n", None),
    "only an alias": ("import torch as th\n", "import torch\nimport torch as th\n"),
    "only a part under another name": (
        "import torch.nn as nn\n",
        "import torch\nimport torch.nn as nn\n",
    ),
    "only names from it": ("from torch import nn\n", "import torch\nfrom torch import nn\n"),
    "between others": (
        "import os\n\nimport numpy as np\nfrom torch import nn\n\nimport vllm\n",
        "import os\n\nimport numpy as np\nimport torch\nfrom torch import nn\n\nimport vllm\n",
    ),
    "a block of its own": (
        "import os\n\nimport vllm\n",
        "import os\n\nimport torch\n\nimport vllm\n",
    ),
    "after the standard library": ("import os\n\nx = 1\n", "import os\n\nimport torch\n\nx = 1\n"),
    "only in a try": (
        "try:\n    import torch\nexcept ImportError:\n    pass\n",
        "import torch\n\ntry:\n    import torch\nexcept ImportError:\n    pass\n",
    ),
}


@pytest.mark.parametrize("case", TORCH, ids=str)
def test_import_torch(case: str) -> None:
    before, after = TORCH[case]
    wanted = FilePlan((), {"torch": ()})
    if after is None:
        check_noop(before, wanted)
    else:
        check_transformed(before, after, wanted)
        if not lint(before.encode(), "I"):
            assert lint(after.encode(), "I") == []


def test_nothing_to_do_where_all_is_imported() -> None:
    check_noop(f"from {LAYERNORM} import GemmaRMSNorm, RMSNorm\n", plan("", {}, BOTH))


@pytest.mark.parametrize(
    "late",
    [
        f"from {LAYERNORM} import RMSNorm",
        f"from {LAYERNORM} import GemmaRMSNorm",
        "from vllm.config import VllmConfig",
    ],
)
def test_an_import_below_the_use_comes_too_late(late: str) -> None:
    before = f"import torch\n\nnorm = Local(4)\n{late}\n"
    after = f"import torch\nfrom {LAYERNORM} import RMSNorm\n\nnorm = RMSNorm(4)\n{late}\n"
    after = after.replace("torch\nfrom", "torch\n\nfrom")
    check_transformed(before, after, plan(before, {"Local": "RMSNorm"}, NORM))


@pytest.mark.parametrize(
    "deletion", ["del RMSNorm\n", "def f():\n    del RMSNorm\n    return Local(4)\n"]
)
def test_a_deleted_name_is_refused(deletion: str) -> None:
    before = f"from {LAYERNORM} import RMSNorm\n\nnorm = Local(4)\n\n\n{deletion}"
    check_refused(before, plan(before, {"Local(4)": "RMSNorm(4)"}, NORM), "RMSNorm")


def test_several_blocks_at_once() -> None:
    before = '"""Doc."""\n\n\nclass A:\n    pass\n'
    after = (
        '"""Doc."""\n\nimport math\n\nimport torch\nfrom numpy import array\n\n'
        f"from vllm.config import x\nfrom {LAYERNORM} import RMSNorm\n\n\nclass A:\n    pass\n"
    )
    imports = {**NORM, "numpy": ("array",), "math": (), "torch": (), "vllm.config": ("x",)}
    check_transformed(before, after, FilePlan((), imports))
    assert is_formatted(after.encode())
    assert lint(after.encode(), "I") == []


def test_names_sort_as_isort_sorts_them() -> None:
    names = ["fused_add", "RMSNorm", "GATE_16", "GATE_8", "gemma", "aNorm", "X", "Norm2", "Norm10"]
    rng = random.Random(3)
    for _ in range(5):
        rng.shuffle(names)
        first, rest = names[:3], names[3:]
        source = apply_plan(b"", FilePlan((), {"vllm.a": tuple(first)})).source
        source = apply_plan(source, FilePlan((), {"vllm.a": tuple(rest)})).source
        assert lint(source, "I") == []
        assert set(re.findall(r"\w+", source.decode())) == {"from", "vllm", "a", "import", *names}


def test_modules_sort_as_isort_sorts_them() -> None:
    modules = ["vllm.fp8", "vllm.fp16", "vllm.Conf", "vllm.conf_x", "vllm.conf.y", "vllm", "vllm.a"]
    rng = random.Random(5)
    for _ in range(5):
        rng.shuffle(modules)
        source = b""
        for number, module in enumerate(modules):
            source = apply_plan(source, FilePlan((), {module: (f"f{number}",)})).source
        assert lint(source, "I") == []
        assert source.count(b"\n") == len(modules)


REFUSALS = {
    "a class that stays": "class RMSNorm:\n    pass\n",
    "a function": "def RMSNorm():\n    pass\n",
    "another module's": "from x import RMSNorm\n",
    "another name's": "from x import Foo as RMSNorm\n",
    "a relative import": "from .layernorm import RMSNorm\n",
    "another name of the module": f"from {LAYERNORM} import LayerNorm as RMSNorm\n",
    "a plain import": "import x as RMSNorm\n",
    "a variable": "RMSNorm = None\n",
    "a loop variable": "for RMSNorm in ():\n    pass\n",
    "a conditional class": "if 1:\n\n    class RMSNorm:\n        pass\n",
    "a fallback": (
        f"try:\n    from {LAYERNORM} import RMSNorm\nexcept ImportError:\n    RMSNorm = None\n"
    ),
    "a global in a function": "def f():\n    global RMSNorm\n    RMSNorm = 1\n",
}


@pytest.mark.parametrize("case", REFUSALS, ids=str)
def test_a_name_that_is_taken_is_refused(case: str) -> None:
    check_refused(REFUSALS[case], plan("", {}, NORM), "the module binds 'RMSNorm' itself")


def test_torch_bound_otherwise_and_star_imports_are_refused() -> None:
    for source in (
        "import x as torch\n",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\n",
    ):
        check_refused(source, FilePlan((), {"torch": ()}), "binds 'torch'")
    check_refused("\nfrom x import *\n", plan("", {}, NORM), "line 2: `import")
    check_noop("import torch\nfrom x import *\n", FilePlan((), {"torch": ()}))


LOCALS = {
    "a local import": f"def f():\n    from {LAYERNORM} import RMSNorm\n    return Old(1)\n",
    "a parameter": "def f(RMSNorm):\n    return Old(1)\n",
    "an enclosing function's variable": (
        "def g():\n    RMSNorm = 1\n    def f():\n        return Old(1)\n"
    ),
    "a class attribute": "class A:\n    RMSNorm = 1\n    x = Old(1)\n",
    "a comprehension": "x = [Old(1) for RMSNorm in ()]\n",
}


@pytest.mark.parametrize("case", LOCALS, ids=str)
def test_a_local_name_that_hides_the_import_is_refused(case: str) -> None:
    source = LOCALS[case]
    check_refused(source, plan(source, {"Old(1)": "RMSNorm(1)"}, NORM), "bound locally here")


def test_a_local_name_elsewhere_is_no_obstacle() -> None:
    before = "class A:\n    RMSNorm = 1\n\n    def f(self):\n        return Old(1)\n"
    after = f"from {LAYERNORM} import RMSNorm\n\n\n{before}".replace("Old", "RMSNorm")
    check_transformed(before, after, plan(before, {"Old(1)": "RMSNorm(1)"}, NORM))
