"""Kubernetes' network policies: who may reach whom."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.deploy.manifests import Manifest

HERE = {"kubernetes.io/metadata.name": "sgformer"}
NAMES = {"kubernetes.io/metadata.name": "kube-system"}


class Party(NamedTuple):
    """A pod, or what is outside of the cluster: nothing has labels there."""

    pod: dict[str, str]
    namespace: dict[str, str]


def ours(name: str) -> Party:
    return Party({"app.kubernetes.io/name": name}, HERE)


def allowed(manifests: list[Manifest], source: Party, target: Party, port: int, protocol: str = "TCP") -> bool:
    """Whether both ends allow it. An end in another namespace has no policies that we know."""
    ends = (("egress", "to", source, target), ("ingress", "from", target, source))
    return all(_end_allows(manifests, *end, (protocol, port)) for end in ends if end[2].namespace == HERE)


def _end_allows(manifests: list[Manifest], way: str, peers: str, end: Party, other: Party, door: tuple[str, int]) -> bool:
    rules = [
        one["spec"].get(way, [])
        for one in manifests
        if one["kind"] == "NetworkPolicy"
        and way.title() in one["spec"]["policyTypes"]
        and selects(one["spec"]["podSelector"], end.pod)
    ]
    if not rules:
        return True  # Kubernetes' rule: a pod that no policy selects is open
    return any(_rule_allows(rule, peers, other, door) for found in rules for rule in found)


def _rule_allows(rule: dict[str, Any], peers: str, other: Party, door: tuple[str, int]) -> bool:
    doors = {(one.get("protocol", "TCP"), one["port"]) for one in rule.get("ports", ())}
    return (not doors or door in doors) and (not rule.get(peers) or any(_is_peer(one, other) for one in rule[peers]))


def _is_peer(peer: dict[str, Any], other: Party) -> bool:
    namespace = peer.get("namespaceSelector")
    where = other.namespace == HERE if namespace is None else selects(namespace, other.namespace)
    return where and selects(peer.get("podSelector", {}), other.pod)


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Only what our manifests use: labels, and `In`."""
    chosen = [(one["key"], one["values"]) for one in selector.get("matchExpressions", ()) if one["operator"] == "In"]
    assert len(chosen) == len(selector.get("matchExpressions", ())), f"not understood: {selector}"
    return selector.get("matchLabels", {}).items() <= labels.items() and all(labels.get(key) in some for key, some in chosen)


def lets_in(manifests: list[Manifest], target: Party, source: Party, port: int) -> bool:
    """Whether the target's end allows it, whatever the other end says."""
    return _end_allows(manifests, "ingress", "from", target, source, ("TCP", port))


def wrong_ways(manifests: list[Manifest]) -> list[str]:
    """Ways that are needed and shut, or open and not needed."""
    service, worker, redis, prune = ours("sgformer"), ours("sgformer-worker"), ours("redis"), ours("prune")
    admin = ours("sgformer-admin")
    operator = Party({"app": "console"}, {"kubernetes.io/metadata.name": "ops", "sgformer.io/may-administer": "true"})
    caller = Party({"app": "shop"}, {"kubernetes.io/metadata.name": "shop", "sgformer.io/may-ask": "true"})
    prometheus = Party({"app": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"})
    stranger = Party({"app": "stranger"}, {"kubernetes.io/metadata.name": "elsewhere"})
    names = Party({"k8s-app": "kube-dns"}, NAMES)
    needed = [(caller, service, 8000), (prometheus, service, 8000), (service, redis, 6379), (worker, redis, 6379)]
    needed += [(operator, admin, 8000), (prometheus, admin, 8000), (admin, redis, 6379)]
    shut_in = [
        *((stranger, one, port) for one, port in ((service, 8000), (redis, 6379), (worker, 8000), (prune, 8000))),
        *((prune, one, port) for one, port in ((service, 8000), (redis, 6379))),
        *((caller, one, port) for one, port in ((redis, 6379), (service, 22), (admin, 8000))),
        *((one, admin, 8000) for one in (stranger, service, worker, prune)),
        *((operator, one, port) for one, port in ((redis, 6379), (service, 8000))),
    ]
    shut_out = [(one, stranger, port) for one in (service, admin, worker, redis, prune) for port in (443, 53)]
    found = [f"{_name(a)} does not reach {_name(b)}:{port}" for a, b, port in needed if not allowed(manifests, a, b, port)]
    found += [f"{_name(b)} lets {_name(a)} in at {port}" for a, b, port in shut_in if lets_in(manifests, b, a, port)]
    found += [f"{_name(a)} reaches {_name(b)}:{port}" for a, b, port in shut_out if allowed(manifests, a, b, port)]
    for party in (service, admin, worker, redis):
        for protocol in ("UDP", "TCP"):
            if not allowed(manifests, party, names, 53, protocol):
                found.append(f"{_name(party)} cannot ask for names by {protocol}")
    return found


def _name(party: Party) -> str:
    return next(iter(party.pod.values()))
