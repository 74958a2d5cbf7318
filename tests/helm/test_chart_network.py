"""The network policies let through what the processes need and nothing else, as Kubernetes reads policies."""

from ipaddress import ip_address, ip_network

import pytest

KAFKA, DATABASE, STORE, COLLECTOR, NAMES, KUBERNETES = 9092, 5432, 443, 4317, 53, 6443


PRIVATE, PUBLIC, LINK_LOCAL, RESOLVER = "10.96.0.7", "203.0.113.7", "169.254.169.254", "kube-system"
"""Where a connection may go to or come from that is no pod here: an address, or a namespace."""

"""The labels of a pod here, or one of those places."""


def leaves(found, component, port, to):
    """Whether a component's pods may open a connection."""
    return _passes(found, component, "Egress", "egress", "to", port, to)


def enters(found, component, port, source):
    """Whether a component's pods take a connection."""
    return _passes(found, component, "Ingress", "ingress", "from", port, source)


def _passes(found, component, kind, rules, peers, port, other):
    labels = found.pods()[component]["metadata"]["labels"]
    policies = [
        each["spec"]
        for each in found.of("NetworkPolicy")
        if each["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        and kind in each["spec"]["policyTypes"]
    ]
    if not policies:
        return True
    return any(
        any(each["port"] == port for each in rule["ports"]) and _is_peer(rule.get(peers), other)
        for policy in policies
        for rule in policy.get(rules) or []
    )


def _is_peer(peers, other):
    return peers is None or any(_is(peer, other) for peer in peers)


def _is(peer, other):
    if isinstance(other, dict):
        return set(peer) == {"podSelector"} and peer["podSelector"]["matchLabels"].items() <= other.items()
    if other == RESOLVER:
        name = {"kubernetes.io/metadata.name": RESOLVER}
        return bool(peer.get("namespaceSelector", {}).get("matchLabels") == name)
    block = peer.get("ipBlock")
    return block is not None and (
        ip_address(other) in ip_network(block["cidr"])
        and not any(ip_address(other) in ip_network(left_out) for left_out in block.get("except", []))
    )


def between(found, one, other, port):
    pods = found.pods()
    ends = [pods[each]["metadata"]["labels"] for each in (one, other)]
    return leaves(found, one, port, ends[1]) and enters(found, other, port, ends[0])


PROCESSES = ("detector", "memory", "updater", "run", "deploy", "setup")
NEEDED = {
    "detector": {"kafka", "deploy"},
    "memory": {"kafka", "database", "store"},
    "updater": {"database", "store", "deploy", "kubernetes"},
    "run": {"database", "store", "deploy"},
    "deploy": {"kafka", "database", "store", "detector", "memory", "updater"},
    "setup": {"kafka", "database"},
}
PORTS = {"detector": 9101, "memory": 9102, "updater": 9103, "run": 9103, "deploy": 8700, "setup": 9104}


@pytest.mark.parametrize("component", PROCESSES)
def test_a_process_reaches_what_it_needs_and_nothing_else(render, component):
    found = render(over={"networkPolicy": {"kubernetesTo": []}})
    outside = {
        "kafka": KAFKA,
        "database": DATABASE,
        "store": STORE,
        "kubernetes": KUBERNETES,
        "a collector": COLLECTOR,
    }
    reached = {name for name, port in outside.items() if leaves(found, component, port, PRIVATE)}
    reached |= {
        other for other in PROCESSES if other != component and between(found, component, other, PORTS[other])
    }
    assert reached == NEEDED[component]
    assert leaves(found, component, NAMES, RESOLVER)


@pytest.mark.parametrize("scenario", ["minimal", "production", "gpu", "tls-sasl", "existing-secrets"])
def test_every_rule_out_names_whom_it_is_to(render, scenario):
    """But for those that the values add; with `_is_peer`, a rule without peers is to everybody."""
    rules = [
        rule
        for policy in render(scenario, over={"networkPolicy": {"extraEgress": []}}).of("NetworkPolicy")
        for rule in policy["spec"].get("egress") or []
    ]
    assert len(rules) > len(PROCESSES)
    assert [rule for rule in rules if not rule.get("to")] == []
    assert [rule for rule in rules for peer in rule["to"] if not any(peer.values())] == []


def test_by_default_brokers_database_and_cluster_are_private_and_node_credentials_unreachable(render):
    found = render(over={"settings": {"deploy": {"prometheus_url": "http://prometheus:9090"}}})
    for component in PROCESSES:
        for port in (KAFKA, DATABASE, KUBERNETES, COLLECTOR, NAMES, 9090):
            assert not leaves(found, component, port, PUBLIC), (component, port)
        for port in (80, STORE, KAFKA, DATABASE, KUBERNETES, NAMES, 9090):
            assert not leaves(found, component, port, LINK_LOCAL), (component, port)
    stores = {component for component in PROCESSES if leaves(found, component, STORE, PUBLIC)}
    assert stores == {component for component, needed in NEEDED.items() if "store" in needed}


def test_nobody_reaches_torchserve_or_a_port_that_is_not_named(render):
    found = render()
    for component in PROCESSES:
        for port in (8080, 8081, 22):
            assert not enters(found, component, port, found.pods()["deploy"]["metadata"]["labels"])


def test_metrics_are_read_from_the_namespace_of_the_values_alone(render):
    found = render(
        over={"networkPolicy": {"metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]}}
    )
    for component in ("detector", "memory", "updater", "run"):
        assert enters(found, component, PORTS[component], {"app": "prometheus"})
        assert not enters(found, component, PORTS[component], {"app": "other"})
    closed = render(over={"networkPolicy": {"metricsFrom": []}})
    assert not enters(closed, "run", 9103, {"app": "prometheus"})
    assert not enters(closed, "deploy", 9104, {"app": "prometheus"})


def test_ports_are_those_of_the_brokers_the_database_and_the_store(render):
    found = render("existing-secrets")
    assert leaves(found, "memory", 6432, PRIVATE)
    assert leaves(found, "memory", 8333, PRIVATE)
    assert not leaves(found, "memory", 5432, PRIVATE)
    assert not leaves(found, "memory", 443, PRIVATE)
    brokers = render("production", over={"networkPolicy": {"kafkaTo": []}})
    assert {port for port in (9092, 9093, 9094) if leaves(brokers, "detector", port, PRIVATE)} == {9093, 9094}


def test_deploy_reaches_the_prometheus_that_it_is_told_of(render):
    told = {"settings": {"deploy": {"prometheus_url": "http://prometheus.monitoring:9090"}}}
    assert leaves(render(over=told), "deploy", 9090, PRIVATE)
    assert not leaves(render(), "deploy", 9090, PRIVATE)
    assert not leaves(render(over=told), "memory", 9090, PRIVATE)


def test_deploy_alone_reaches_webhooks_and_only_where_there_are_any(render):
    found = render("production")
    assert leaves(found, "deploy", 8443, PRIVATE)
    assert not leaves(render(), "deploy", 8443, PRIVATE)
    assert not leaves(found, "memory", 8443, PRIVATE)
    places = {"networkPolicy": {"webhooksTo": [{"podSelector": {"matchLabels": {"app": "relay"}}}]}}
    closed = render("production", over=places)
    assert leaves(closed, "deploy", 8443, {"app": "relay"})
    assert not leaves(closed, "deploy", 8443, PRIVATE)


def test_places_of_the_values_close_the_rest(render):
    found = render("production")
    assert not leaves(found, "detector", 9093, PRIVATE)
    kafka = [
        rule
        for policy in found.of("NetworkPolicy")
        for rule in policy["spec"].get("egress") or []
        if {"protocol": "TCP", "port": 9093} in rule["ports"]
    ]
    place = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kafka"}}}
    assert [rule["to"] for rule in kafka] == [[place]] * 4
    assert all(leaves(found, component, COLLECTOR, PRIVATE) for component in PROCESSES)


def test_the_hook_is_closed_and_reaches_what_it_needs_before_any_other_policy_is_there(render, scenario):
    found = render(scenario)
    hooks = [each for each in found.objects if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    weights = {
        each["kind"]: int(each["metadata"]["annotations"].get("helm.sh/hook-weight", 0)) for each in hooks
    }
    assert weights["NetworkPolicy"] < weights["Job"]
    alone = type(found)(hooks)
    database = {"existing-secrets": 6432}.get(scenario, DATABASE)
    peer = "10.20.0.7" if scenario == "production" else PRIVATE
    assert leaves(alone, "setup", database, peer)
    assert leaves(alone, "setup", NAMES, RESOLVER)
    assert not leaves(alone, "setup", STORE, PRIVATE)
    assert not enters(alone, "setup", 9104, PRIVATE)


def test_without_policies_all_is_open(render):
    found = render(over={"networkPolicy": {"enabled": False}})
    assert found.of("NetworkPolicy") == []
    assert leaves(found, "detector", DATABASE, PRIVATE)
