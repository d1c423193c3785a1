"""The post-grad pass: an all-reduce and its norm become one op, where the contract agrees."""

from __future__ import annotations

import operator
import time
from pathlib import Path
from typing import Any

import torch
import vllm.ir.ops  # registers the ops that sites are looked for by
from torch import fx
from torch._inductor.pattern_matcher import stable_topological_sort
from vllm.compilation.passes.inductor_pass import InductorPass, get_pass_context
from vllm.compilation.passes.vllm_inductor_pass import VllmInductorPass

from normport.layers.car_rmsnorm import ops, sites
from normport.layers.car_rmsnorm.contract import CONTRACT, Decision, Table, digest, route
from normport.layers.car_rmsnorm.counts import RangeCount, Report, register
from normport.layers.car_rmsnorm.defaults import state
from normport.layers.car_rmsnorm.logs import logger
from normport.layers.car_rmsnorm.providers import Provider, available
from normport.layers.car_rmsnorm.reading import read_vllm
from normport.layers.car_rmsnorm.sites import ADD, NORM, Limits, Site

assert vllm.ir.ops


class CarRmsNormPass(VllmInductorPass):  # type: ignore[misc]
    """Fuses in the compile ranges that ``route`` calls fused; elsewhere it counts.

    An object that cannot do anything (tensor parallel size 1, a configuration outside the
    contract, an unusable provider) is complete all the same: ``decision`` says why.
    """

    def __init__(self, config: Any, table: Table = CONTRACT) -> None:
        super().__init__(config)
        self.table = table
        self.route_config = read_vllm(config, table)
        self.flag = bool(config.compilation_config.pass_config.fuse_allreduce_rms)
        self.decision: Decision = state(config, table)
        self.group_name: str | None = None
        self.comm_id: int | None = None
        self.max_rows: int | None = None
        self.provider: Provider | None = None
        rank = 0
        if self.decision.fused:
            from vllm.distributed import get_tp_group

            group = get_tp_group()
            self.group_name, rank = group.unique_name, group.rank
            self._choose_provider(group)
        self.report = register(
            Report(
                state="on" if self.flag and self.decision.fused else "off",
                fuse_allreduce_rms=self.flag,
                code=self.decision.code,
                reason=self.decision.reason,
                rank=rank,
                tensor_parallel=config.parallel_config.tensor_parallel_size,
                group=self.group_name,
                provider=None if self.provider is None else self.provider.name,
                compilation=config.compilation_config,
            )
        )
        if not self.decision.fused:
            logger().warning_once("CAR-RMSNorm does nothing. %s", self.decision.reason)

    def _choose_provider(self, group: Any) -> None:
        found = available()
        why = found.problem
        if found.provider is not None:
            why = found.provider.unusable(group)
        if why is not None:
            self.decision = Decision(False, "provider", f"Native: {why}.")
            return
        assert found.provider is not None
        assert self.route_config.hidden_size is not None
        self.provider = found.provider
        ops.ask_about(group.unique_name, self.route_config, self.table)
        self.max_rows = self.provider.max_rows(
            group, self.route_config.hidden_size, self.model_dtype.itemsize
        )
        comm = getattr(getattr(group.device_communicator, "ca_comm", None), "_jit_comm", None)
        self.comm_id = getattr(comm, "_comm_id", None)

    def decide(self, start: int, end: int) -> Decision:
        """Fused or native for an inclusive compile range."""
        if not self.decision.fused:
            return self.decision
        if self.max_rows is not None and end > self.max_rows:
            return Decision(
                False,
                "provider-rows",
                f"Native: range {start}:{end} exceeds the provider's {self.max_rows} rows.",
            )
        return route(self.route_config, compile_range=(start, end), table=self.table)

    @VllmInductorPass.time_and_log  # type: ignore[untyped-decorator]
    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite one graph in place."""
        began = time.perf_counter()
        part = get_pass_context().compile_range
        decision = self.decide(part.start, part.end)
        count = self.report.ranges.setdefault(
            (part.start, part.end),
            RangeCount(part.start, part.end, decision.fused, decision.code, decision.reason),
        )
        count.graphs += 1
        if self.group_name is not None:
            self._rewrite(graph, count)
        self.report.seconds += time.perf_counter() - began
        logger().debug(
            "CAR-RMSNorm in range %d:%d: %d matched, %d replaced so far (%s)",
            count.start,
            count.end,
            count.matched,
            count.replaced,
            count.code,
        )
        self.report.save()

    def _rewrite(self, graph: fx.Graph, count: RangeCount) -> None:
        assert self.group_name is not None
        replaced = 0
        found = list(sites.all_reduces(graph, self.group_name, self.comm_id))
        self.report.all_reduces += len(found)
        self.report.norms += sites.norms(graph)
        for reduce in found:
            candidates = list(sites.sites_of(reduce))
            if not candidates:
                continue
            count.matched += 1
            if not count.fused:
                continue
            site = self._choose(candidates, count)
            if site is None:
                continue
            self._replace(graph, site)
            count.forms[site.form] += 1
            replaced += 1
        count.replaced += replaced
        if replaced:
            # A user of the reduced tensor may stand before the norm that was fused with it.
            stable_topological_sort(graph)

    def _choose(self, candidates: list[Site], count: RangeCount) -> Site | None:
        """The first site without a problem; if all have one, the first one's is counted."""
        first = None
        for site in candidates:
            why = self._problem(site, count)
            if why is None:
                return site
            first = first or why
        count.skipped[str(first)] += 1
        return None

    def _problem(self, site: Site, count: RangeCount) -> str | None:
        assert self.provider is not None
        assert self.route_config.hidden_size is not None
        limits = Limits(self.route_config.hidden_size, self.model_dtype, count.start, count.end)
        why = sites.problem(site, limits)
        if why is None and site.form == sites.FUSED_ADD and sites.results(site.norm) is None:
            why = "results: they are not read one by one"
        return why or self.provider.declines(residual=site.form != NORM, round_sum=site.form == ADD)

    def _replace(self, graph: fx.Graph, site: Site) -> None:
        assert self.provider is not None
        x = sites.argument(site.reduce, 0, "tensor")
        arguments: tuple[Any, ...]
        with graph.inserting_before(site.norm):
            if site.form == NORM:
                target = torch.ops.normport_car.all_reduce_rms_norm.default
                arguments = (x, site.weight, float(site.eps), 0.0)
                places = {"normed": 0, "reduced": 1}
            else:
                raw = bool(site.raw_users)
                name = "all_reduce_add_rms_norm" + ("_raw" if raw else "")
                target = getattr(torch.ops.normport_car, name).default
                rounded = site.form == ADD
                arguments = (x, site.residual, site.weight, float(site.eps), 0.0, rounded)
                places = {"normed": 0, "total": 1, **({"reduced": 2} if raw else {})}
            op = graph.call_function(target, (*arguments, self.group_name, self.provider.name))
            values = _values(site.reduce, len(places))
            _describe(op, values, site.norm)
            made = {}
            for result, index in places.items():
                made[result] = graph.call_function(operator.getitem, (op, index))
                _describe(made[result], values[index], site.norm)
        self._hand_over(graph, site, made)

    def _hand_over(self, graph: fx.Graph, site: Site, made: dict[str, fx.Node]) -> None:
        """Point the users of the old nodes to the new ones, and erase what nobody reads."""
        old: list[fx.Node] = []
        if site.form == sites.FUSED_ADD:
            for index, nodes in (sites.results(site.norm) or {}).items():
                for node in nodes:
                    node.replace_all_uses_with(made["normed" if index == 0 else "total"])
                    old.append(node)
        else:
            site.norm.replace_all_uses_with(made["normed"])
        old.append(site.norm)
        if site.add is not None:
            site.add.replace_all_uses_with(
                made["total"], delete_user_cb=lambda u: u is not site.norm
            )
            old.append(site.add)
        if "reduced" in made:
            site.reduce.replace_all_uses_with(
                made["reduced"], delete_user_cb=lambda user: user not in site.consumed
            )
        for node in (*old, site.reduce, *reversed(made.values())):
            if not node.users:
                graph.erase_node(node)

    def uuid(self) -> str:
        """Covers every source of this package, switch, table cell, group and limit.

        And the rank: one that took another's graph from Inductor's cache would not see it, and
        its counts would depend on who was faster.
        """
        text: str = InductorPass.hash_dict(
            {
                "sources": _sources(),
                "flag": self.flag,
                "decision": self.decision.code,
                "table": digest(self.table),
                "config": repr(self.route_config),
                "dtype": str(self.model_dtype),
                "group": self.group_name,
                "rank": self.report.rank,
                "comm_id": self.comm_id,
                "provider": None if self.provider is None else self.provider.name,
                "max_rows": self.max_rows,
                "ops": ops.NAMESPACE,
            }
        )
        return text


def _sources() -> list[str]:
    return [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]


def _values(reduce: fx.Node, count: int) -> tuple[torch.Tensor, ...]:
    """Fake results, each with memory of its own: passes after this one look at who shares some."""
    value = reduce.meta["val"]
    mode = getattr(value, "fake_mode", None)
    if mode is None:
        return tuple(torch.empty_like(value, device="meta") for _ in range(count))
    with mode:
        return tuple(torch.empty_like(value) for _ in range(count))


def _describe(node: fx.Node, value: Any, like: fx.Node) -> None:
    node.meta["val"] = value
    for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node"):
        if key in like.meta:
            node.meta[key] = like.meta[key]
