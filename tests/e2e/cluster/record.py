"""Records, for the table of what was seen on a real Kubernetes, how often a test had each node's engine restarted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.e2e.cluster.rollout import RealCluster
from tests.support.reports import cluster_table


@contextlib.contextmanager
def recorded(test: pytest.Item, cluster: RealCluster) -> Iterator[None]:
    """Count the restarts until the block ends; after a boot the count of a node is another one."""
    before = {name: (node.host.pid, node.engine_starts()) for name, node in cluster.nodes.items()}
    engines = {name: cluster.engine(name) for name in cluster.nodes}
    yield
    restarts = {
        engines[name]: node.engine_starts() - before[name][1] if node.host.pid == before[name][0] else None
        for name, node in cluster.nodes.items()
    }
    # not by record_property, which warns where a file for CI is written (--junitxml) as well
    test.user_properties.append((cluster_table.PROPERTY, restarts))
