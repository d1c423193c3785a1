"""Model-local norm classes as people write them, and some that only look like one."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.choices import Choices

NAMES = (
    *("LocalNorm", "ModelRMSNorm", "_Norm", "LayerNorm", "RMSNorm", "GemmaRMSNorm", "Größe"),
    *("T5Scale", "Norm2", "nn_norm"),
)


@dataclass(frozen=True)
class NormClass:
    """A class's text, and how it is constructed.

    helpers: text of the functions it calls, which stands before it.
    size, eps, flag: its constructor's parameters; None where it has none.
    keyword_only: its eps must be passed by keyword.
    default: whether its eps has a default.
    weightless: it is constructed without a weight (with ``flag=False`` where it has one).
    exact: bit-equal to a standard layer where it is converted. Not so where it divides by a root,
        which rounds otherwise than rsqrt, or adds its offset to a narrow weight.
    """

    name: str
    text: str
    helpers: str
    size: str | None
    eps: str
    flag: str | None
    keyword_only: bool
    default: bool
    weightless: bool
    exact: bool


def norm_class(choices: Choices, key: str, name: str) -> NormClass:
    """The class of the name ``name``; ``key`` keeps its choices apart from another's."""
    return _Writer(choices, key, name).write()


class _Writer:
    def __init__(self, choices: Choices, key: str, name: str) -> None:
        self.choices, self.key, self.name = choices, key, name
        self.kind = choices.pick(f"{key}.weight", ("scale", "offset", "none", "flag", "rounded"))
        self.size = choices.pick(f"{key}.size", ("dim", "hidden_size", "d"))
        self.eps = choices.pick(f"{key}.eps", ("eps", "epsilon", "variance_epsilon"))
        self.x = choices.pick(f"{key}.x", ("x", "hidden_states", "input"))
        self.attribute = choices.rarely(f"{key}.attribute", (self.eps, "_eps"), chance=0.3)
        self.helpers = self.default = ""
        self.parameter = "weight"
        self.narrow = False

    def rarely(self, name: str, options: tuple[str, ...], chance: float = 0.25) -> str:
        return self.choices.rarely(f"{self.key}.{name}", options, chance=chance)

    def pick(self, name: str, options: tuple[str, ...]) -> str:
        return self.choices.pick(f"{self.key}.{name}", options)

    def write(self) -> NormClass:
        keyword_only = self.choices.flag(f"{self.key}.keyword_only", chance=0.15)
        sized = self.kind != "none" or self.rarely("unused size", ("", "yes")) == "yes"
        flag = "with_scale" if self.kind == "flag" else None
        weightless = self.kind == "none" or (
            flag is not None and self.choices.flag(f"{self.key}.off", chance=0.5)
        )
        root, exact = self._root()
        body = [*self._docstring(), *self._init(sized, keyword_only, flag), ""]
        body += self._methods()
        body += self._forward(root)
        exact = exact and not self.narrow
        decorator = self.rarely("decorator", ("", "@mark\n"), 0.02)
        base = self.rarely("base", ("nn.Module", "torch.nn.Module", "Base"), 0.06)
        lines = "".join(f"    {line}\n" if line else "\n" for line in body)
        return NormClass(
            name=self.name,
            text=f"{decorator}class {self.name}({base}):\n{lines}",
            helpers=self.helpers,
            size=self.size if sized else None,
            eps=self.eps,
            flag=flag,
            keyword_only=keyword_only,
            default=bool(self.default),
            weightless=weightless,
            exact=exact,
        )

    def _docstring(self) -> list[str]:
        return {
            "none": [],
            "line": ['"""Root mean square, by hand."""', ""],
            "lines": ['"""Root mean square.', "", "    With a é in it.", '    """', ""],
            "comment": ["# The checkpoint was trained with this one."],
            "raw": ['r"""With \\d in it."""', ""],
        }[self.pick("docstring", ("none", "line", "lines", "comment", "raw"))]

    def _init(self, sized: bool, keyword_only: bool, flag: str | None) -> list[str]:
        typed = self.choices.flag(f"{self.key}.typed", chance=0.5)
        size = [f"{self.size}: int" if typed else self.size] if sized else []
        self.default = default = self.pick("default", ("1e-6", "1e-05", "EPS", ""))
        equals = " = " if typed else "="
        annotation = ": float" if typed else ""
        eps = f"{self.eps}{annotation}{equals}{default}" if default else f"{self.eps}{annotation}"
        switch = [f"{flag}: bool = True" if typed else f"{flag}=True"] if flag else []
        if not default and not keyword_only:
            switch = []  # below, after the parameter without a default
        star = ["*"] if keyword_only else []
        parameters = ["self", *size, *star, eps, *switch]
        if flag and not switch:
            parameters.append(f"{flag}=True")
        comment = self.rarely("type comment", ("", "  # type: ignore"), 0.15)
        returns = " -> None" if typed else ""
        lines = [f"def __init__({', '.join(parameters)}){returns}:{comment}"]
        lines.append(
            "    "
            + self.rarely(
                "super",
                (
                    "super().__init__()",
                    "nn.Module.__init__(self)",
                    f"super({self.name}, self).__init__()",
                ),
                0.1,
            )
        )
        lines.append(f"    self.{self.attribute} = {self.eps}")
        if self.rarely("noted size", ("", "yes")) and sized:
            lines.append(f"    self.{self.size} = {self.size}")
        return lines + ["    " + line for line in self._parameter(flag)]

    def _parameter(self, flag: str | None) -> list[str]:
        if self.kind == "none":
            return []
        factory = "zeros" if self.kind == "offset" else "ones"
        factory = self.rarely("factory", (factory, "empty", "zeros", "ones"), 0.2)
        dtype = self.rarely("dtype", ("", ", dtype=torch.float32"), 0.1)
        shape = self.rarely("shape", (self.size, f"({self.size},)", f"1, {self.size}"), 0.1)
        made = f"nn.Parameter(torch.{factory}({shape}{dtype}))"
        name = self.rarely("parameter", ("weight", "scale"), 0.05)
        self.parameter = name
        if flag:
            return self._switched(name, made, flag)
        plain = f"self.{name} = {made}"
        registered = f'self.register_parameter("{name}", {made})'
        lines = [self.rarely("register", (plain, registered), 0.1)]
        extra = self.rarely(
            "extra",
            (
                "",
                f"nn.init.ones_(self.{name})",
                "self.calls = 0",
                f"self.register_buffer('seen', torch.ones({self.size}))",
                f"self.bias = nn.Parameter(torch.ones({self.size}))",
            ),
            0.1,
        )
        return [*lines, *([extra] if extra else [])]

    def _switched(self, name: str, made: str, flag: str) -> list[str]:
        one = [f"self.{name} = {made} if {flag} else None"]
        two = [f"if {flag}:", f"    self.{name} = {made}", "else:", f"    self.{name} = None"]
        three = [
            f"if {flag}:",
            f"    self.{name} = {made}",
            "else:",
            f'    self.register_parameter("{name}", None)',
        ]
        return {"1": one, "2": two, "3": three}[self.pick("switch", ("1", "2", "3"))]

    def _root(self) -> tuple[str, bool]:
        """The text of x / rms(x) for a float32 ``h``; whether the standard norm rounds so."""
        eps = f"self.{self.attribute}"
        mean = self.pick(
            "mean",
            (
                "h.pow(2).mean(-1, keepdim=True)",
                "(h * h).mean(dim=-1, keepdim=True)",
                "torch.mean(h.pow(2), dim=-1, keepdim=True)",
                "h.square().mean((-1,), keepdim=True)",
                "torch.mean(h ** 2, -1, True)",
                "(h ** 2).mean(-1, keepdim=True)",
            ),
        )
        mean = self.rarely(
            "other mean",
            (
                mean,
                "h.pow(2).sum(-1, keepdim=True)",
                "h.pow(2).mean(-2, keepdim=True)",
                "(h - h.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True)",
                "h.abs().pow(2).mean(-1, keepdim=True)",
                "h.pow(2).mean()",
                "h[..., :4].pow(2).mean(-1, keepdim=True)",
            ),
            0.06,
        )
        forms = (
            (f"h * torch.rsqrt({mean} + {eps})", True),
            (f"h * ({mean} + {eps}).rsqrt()", True),
            (f"torch.rsqrt({mean} + {eps}) * h", True),
            (f"h.mul(torch.rsqrt({mean}.add({eps})))", True),
            (f"h / torch.sqrt({mean} + {eps})", False),
            (f"h * ({mean} + {eps}).pow(-0.5)", False),
            (f"h * ({mean} + {eps}) ** -0.5", False),
            (f"h * torch.rsqrt({eps} + {mean})", True),
        )
        return self.choices.pick(f"{self.key}.root", forms)

    def _methods(self) -> list[str]:
        method = self.rarely("method", ("", "extra_repr", "reset", "property"), 0.15)
        return {
            "": [],
            "extra_repr": [
                "def extra_repr(self):",
                f'    return f"eps={{self.{self.attribute}}}"',
                "",
            ],
            "reset": ["def reset_parameters(self):", "    pass", ""],
            "property": ["@property", "def width(self):", "    return 3", ""],
        }[method]

    def _forward(self, root: str) -> list[str]:
        x = self.x
        typed = self.choices.flag(f"{self.key}.typed forward", chance=0.5)
        head = (
            f"def forward(self, {x}: torch.Tensor) -> torch.Tensor:"
            if typed
            else f"def forward(self, {x}):"
        )
        residual = self.rarely("second", ("", "residual=None", "scale=1.0"), 0.05)
        if residual:
            head = f"def forward(self, {x}, {residual}):"
        wide = self.pick(
            "wide",
            (
                f"{x}.float()",
                f"{x}.to(torch.float32)",
                f"{x}.to(dtype=torch.float32)",
                f"{x}.type(torch.float32)",
            ),
        )
        wide = self.rarely(
            "other wide",
            (
                wide,
                x,
                f"{x}.contiguous().float()",
                f"{x}.double()",
                f"{x}.clone().float()",
                f"{x}[..., :].float()",
            ),
            0.06,
        )
        lines = [f"h = {wide}"]
        if residual == "scale=1.0":
            lines.append("h = h * scale")
        back, before = self._back()
        lines = [*before, *lines]
        shape = self.pick("layout", ("inline", "inline", "method", "function"))
        if shape == "method":
            lines.append("h = self._norm(h)")
        elif shape == "function":
            function = f"_rms_{self.name.strip('_').lower()}"
            root = root.replace(f"self.{self.attribute}", "eps")
            self.helpers = f"def {function}(h, eps):\n    return {root}\n"
            lines.append(f"h = {function}(h, self.{self.attribute})")
        else:
            lines.append(f"h = {root}")
        lines += self._scaled(back)
        method = ["def _norm(self, h):", f"    return {root}", ""] if shape == "method" else []
        return [*method, head, *(f"    {line}" for line in lines)]

    def _back(self) -> tuple[str, list[str]]:
        """How the result gets its dtype back, and what must stand before."""
        form = self.pick("back", ("to", "type_as", "kept"))
        if form == "kept":
            return "{}.to(kept)", [f"kept = {self.x}.dtype"]
        return {"to": f"{{}}.to({self.x}.dtype)", "type_as": f"{{}}.type_as({self.x})"}[form], []

    def _scaled(self, back: str) -> list[str]:
        if self.kind == "none":
            return [f"return {back.format('h')}"]
        name = self.parameter
        weight = f"self.{name}"
        wide = self.pick(
            "wide weight", (f"{weight}.float()", f"{weight}.to(torch.float32)", weight)
        )
        if self.kind == "rounded":
            product = self.pick(
                "order", (f"{weight} * {back.format('h')}", f"{back.format('h')} * {weight}")
            )
            return [f"return {product}"]
        if self.kind == "offset":
            self.narrow = wide == weight
            wide = self.pick("offset", (f"(1.0 + {wide})", f"({wide} + 1)", f"(1 + {wide})"))
            wide = self.rarely(
                "other offset", (wide, f"(0.5 + self.{name})", f"({wide} + 1.0 - 0)"), 0.1
            )
        product = self.pick("order", (f"(h * {wide})", f"({wide} * h)"))
        if self.kind == "flag":
            return [
                f"if {weight} is not None:",
                f"    h = h * {wide}",
                f"return {back.format('h')}",
            ]
        return [f"return {back.format(product)}"]
