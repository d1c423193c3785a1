"""Where a layer constructs a norm and where it calls it, in all forms that were seen or feared."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.choices import Choices
from fuzz.norm_classes import NormClass

PLAIN = "self.@ = {}"
CONSTRUCTIONS = (
    PLAIN,
    "self.@: nn.Module = {}",
    "self.@: N = {}",
    'self.@: "N" = {}',
    "self.@ = {}  # noqa: E501",
    "self.@ = {}  # type: N",
    "self.@ = {} if config.wide else nn.Identity()",
    "self.@ = nn.Identity() if not config.wide else {}",
    "if config.wide:\n    self.@ = {}\nelse:\n    self.@ = nn.Identity()",
    "if config.wide: self.@ = {}\nelse: self.@ = nn.Identity()",
    "self.@ = nn.Identity()\nif config.wide:\n    self.@ = {}",
    "self.@ = {}; self.built = True",
    "self.@ = \\\n    {}",
    "self.@ = (\n    {}\n)",
    "self.@ = (  # why not\n    {}\n)",
    "made = {}\nself.@ = made",
    "self.@ = self.@_twin = {}",
    "self.@, self.count = {}, 3",
    "self.@ = (kept := {})",
    "setattr(self, '@', {})",
    "self.add_module('@', {})",
    "make = lambda: {}\nself.@ = make()",
    "def make():\n    return {}\nself.@ = make()",
    "self.@ = nn.Sequential({})",
    "self.@ = functools.partial(N, {...})()",
    "self.@ = {'rms': N, 'none': nn.Identity}['rms']({...})",
    "kind = N if config.wide else nn.LayerNorm\nself.@ = kind({...}) if kind is N else kind({.})",
    "self.@ = {}.float()",
    "try:\n    self.@ = {}\nexcept TypeError:\n    raise",
    "with torch.no_grad():\n    self.@ = {}",
    "RMSNorm = GemmaRMSNorm = None\nself.@ = {}",
    "self.@ = {}\nself.@.requires_grad_(False)",
    "self.@ = {}\nself.@_width = self.@",
    "torch.manual_seed(1); self.@ = {}",
    "for _ in range(1):\n    self.@ = {}",
    "self.@ = {} or None",
    "match config.wide:\n    case True:\n        self.@ = {}\n"
    "    case _:\n        self.@ = nn.Identity()",
)

CALLS = (
    "x = self.@(x)",
    "x = x + self.@(x)",
    "x = self.@(x) if self.@ is not None else x",
    "x = self.@.forward(x)",
    "x = self.@(x.transpose(0, 1)).transpose(0, 1)",
    "x = self.@(x.transpose(0, 1)).reshape(-1, x.shape[-1]).reshape(x.shape)",
    "x = self.@(x.transpose(0, 1).contiguous()).view(-1, x.shape[-1]).view(x.shape)",
    "first, second = self.@(x)\nx = torch.stack([second, first])",
    "x = self.@(x)[[1, 0]]",
    "x = self.@(x.float()).to(x.dtype)",
    "wide = x.to(torch.float32)\nx = self.@(wide).to(x.dtype)",
    "x = getattr(self, '@')(x)",
    "x = (lambda t: self.@(t))(x)",
    "for layer in (self.@,):\n    x = layer(x)",
    "x = apply(self.@, x)",
    "x = self.@(x) * self.width_of(self.@)",
    "x = self.@(self.@(x))",
    "y = x\ny = self.@(y).mul_(2)\nx = x + y",
    "x = self.@(x.clone()).to(x)",
    "assert isinstance(self.@, nn.Module)\nx = self.@(x)",
    "x, *_ = self.@(x), None",
    "x = self.@(*[x])",
    "(x) = (self.@)((x))",
    "x = self.@(\n    x  # the input\n)",
    "x = super().__getattr__('@')(x)",
    "x = self._modules['@'](x)",
    "x = self.@(x)\nif not torch.jit.is_scripting():\n    x = x * 1",
    "x = x.mul(2)\nx = self.@(x)",
    "x = self.@(x.unsqueeze(0)).squeeze(0)",
)

HEADS = (
    "q = x.view(*x.shape[:-1], self.heads, self.head_dim)\nx = self.@(q).view(x.shape)",
    "q = x.unflatten(-1, (self.heads, self.head_dim))\nq = self.@(q)\nx = q.flatten(-2)",
    "q, k = x.split([self.head_dim, self.head_dim], dim=-1)\n"
    "q, k = self.@(q), self.@(k)\nx = torch.cat([q, k], dim=-1)",
    "q = x.reshape(*x.shape[:-1], -1, self.head_dim)\n"
    "x = self.@(q.float()).reshape(x.shape).to(x.dtype)",
    "q = x.view(*x.shape[:-1], self.heads, self.head_dim).transpose(1, 2)\n"
    "x = self.@(q).transpose(1, 2).reshape(x.shape)",
)

SIZES = ("config.hidden_size", "self.hidden", "config.heads * config.head_dim", "hidden", "16")
EPSILONS = (
    *("config.rms_norm_eps", "1e-5", "getattr(config, 'rms_norm_eps', 1e-6)", "", "eps"),
    *("float(config.rms_norm_eps)", "self.epsilon", "next(config.epsilons)", "EPS", "1e-5 * 2"),
    *("config.rms_norm_eps if config.wide else 1e-4", "config['eps']", "(small := 1e-5)", "5e-1"),
)


@dataclass(frozen=True)
class Site:
    """Statements for the layer's constructor and for its forward."""

    built: str
    called: str


def site(choices: Choices, key: str, attribute: str, norm: NormClass) -> Site:
    """One norm of a layer, kept in ``attribute``."""
    arguments = _arguments(choices, key, norm)
    call = f"{norm.name}({', '.join(arguments)})"
    if choices.flag(f"{key}.exploded", chance=0.2):
        comment = choices.rarely(f"{key}.comment", ("", "  # as trained"), chance=0.4)
        lines = "".join(f"    {text},{comment}\n" for text in arguments)
        call = f"{norm.name}(\n{lines})"
    form = choices.rarely(f"{key}.built", CONSTRUCTIONS, chance=0.35)
    built = form.replace("@", attribute)
    built = built.replace("{...}", ", ".join(arguments)).replace("{.}", "config.hidden_size")
    indent = next(
        (line[: len(line) - len(line.lstrip())] for line in built.split("\n") if "{}" in line), ""
    )
    built = built.replace("{}", call.replace("\n", f"\n{indent}"))
    built = _named(built, norm.name)
    if norm.weightless:
        called = choices.pick(f"{key}.called", HEADS)
    else:
        called = choices.rarely(f"{key}.called", CALLS, chance=0.35)
    return Site(built, called.replace("@", attribute))


def _named(text: str, name: str) -> str:
    return (
        text.replace(": N =", f": {name} =")
        .replace('"N"', f'"{name}"')
        .replace("type: N", f"type: {name}")
        .replace("partial(N,", f"partial({name},")
        .replace("'rms': N,", f"'rms': {name},")
        .replace("= N if", f"= {name} if")
        .replace("is N else", f"is {name} else")
    )


def _arguments(choices: Choices, key: str, norm: NormClass) -> list[str]:
    found = []
    keywords = choices.flag(f"{key}.keywords", chance=0.3)
    if norm.size is not None:
        size = choices.rarely(f"{key}.size", SIZES, chance=0.4)
        if norm.weightless:
            size = choices.pick(f"{key}.head", ("config.head_dim", "self.head_dim"))
        found.append(f"{norm.size}={size}" if keywords else size)
    eps = choices.rarely(f"{key}.eps", EPSILONS, chance=0.5)
    if not eps and not norm.default:
        eps = "config.rms_norm_eps"
    if eps:
        named = keywords or norm.keyword_only or choices.flag(f"{key}.named", chance=0.7)
        found.append(f"{norm.eps}={eps}" if named else eps)
    if norm.flag is not None and (norm.weightless or choices.flag(f"{key}.flag given", chance=0.3)):
        found.append(f"{norm.flag}={not norm.weightless}")
    if keywords and choices.flag(f"{key}.turned", chance=0.3):
        found.reverse()
    spread = choices.rarely(f"{key}.spread", ("", "*", "**"), chance=0.04)
    if spread == "*" and found and "=" not in found[0]:
        found[0] = f"*[{found[0]}]"
    return found
