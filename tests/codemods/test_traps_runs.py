"""Files in which a second run must find nothing that the first one did not."""

from __future__ import annotations

from norms import BUILD, CALL, MODEL, changed, converted

PLAIN = """\
class P(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Layer("""
POST = (
    ("class Layer(", PLAIN),
    (BUILD, f"{BUILD}\n        self.post = P(config.eps)\n        self.last = P(config.eps)"),
    (CALL, "x = self.norm(x)\n        x = self.post(x)\n        return self.last(x)"),
)


def test_what_flows_out_of_a_local_norm_has_its_size() -> None:
    """Of the standard layer that it becomes the size is known, so that a second run converted
    what the first had refused."""
    new = converted(changed(MODEL, *POST))
    assert new.count("RMSNorm(config.size, eps=config.eps, has_weight=False)") == 2


def test_what_flows_out_of_a_subclass_of_a_local_norm() -> None:
    sub = ("class Layer(", "class Sub(N):\n    pass\n\n\nclass Layer(")
    new = converted(changed(MODEL, *POST, sub, (BUILD, BUILD.replace("N(", "Sub("))))
    assert new.count("has_weight=False") == 2
