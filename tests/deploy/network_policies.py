"""Kubernetes' network policies: which pod may connect to which. Knows the parts of a policy that our manifests use."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.deploy.manifests import Manifest, of_kind

HERE = {"kubernetes.io/metadata.name": "sgformer"}


class Party(NamedTuple):
    """A pod by its labels, and the labels of its namespace."""

    pod: dict[str, str]
    namespace: dict[str, str]


def ours(name: str) -> Party:
    return Party({"app.kubernetes.io/name": name}, HERE)


def other(namespace: str, **labels: str) -> Party:
    """A pod of another namespace, which may have labels of ours."""
    names = {f"sgformer.io/{key.replace('_', '-')}": value for key, value in labels.items()}
    return Party({"app": namespace}, {"kubernetes.io/metadata.name": namespace} | names)


def admits(manifests: list[Manifest], target: Party, source: Party, port: int) -> bool:
    """Whether the target's policies admit the connection, whatever those of the source say."""
    return _allows(manifests, "ingress", "from", target, source, ("TCP", port))


def allowed(manifests: list[Manifest], source: Party, target: Party, port: int, protocol: str = "TCP") -> bool:
    """Whether both ends allow the connection. An end in another namespace has no policies that we know."""
    ends = (("egress", "to", source, target), ("ingress", "from", target, source))
    return all(_allows(manifests, *end, (protocol, port)) for end in ends if end[2].namespace == HERE)


def _allows(manifests: list[Manifest], way: str, peers: str, end: Party, peer: Party, port: tuple[str, int]) -> bool:
    specs = [policy["spec"] for policy in of_kind(manifests, "NetworkPolicy")]
    rules = [
        spec.get(way, []) for spec in specs if way.title() in spec["policyTypes"] and selects(spec["podSelector"], end.pod)
    ]
    if not rules:
        return True  # Kubernetes' rule: a pod that no policy selects is open
    return any(_rule_allows(rule, peers, peer, port) for listed in rules for rule in listed)


def _rule_allows(rule: dict[str, Any], peers: str, peer: Party, port: tuple[str, int]) -> bool:
    ports = {(entry.get("protocol", "TCP"), entry["port"]) for entry in rule.get("ports", ())}
    return (not ports or port in ports) and (not rule.get(peers) or any(_matches(entry, peer) for entry in rule[peers]))


def _matches(entry: dict[str, Any], peer: Party) -> bool:
    namespace = entry.get("namespaceSelector")
    inside = peer.namespace == HERE if namespace is None else selects(namespace, peer.namespace)
    return inside and selects(entry.get("podSelector", {}), peer.pod)


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a selector with labels, and with expressions whose operator is `In`, selects these labels."""
    expressions = selector.get("matchExpressions", ())
    assert all(expression["operator"] == "In" for expression in expressions), f"not understood: {selector}"
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )
