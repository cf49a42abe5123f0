"""Two nodes of Ray on this machine, which end with their standard input; a line read from it kills the second one.

Prints the address, and the process of the second node each time that one is started.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    second = cluster.add_node(**NODE)
    print(cluster.address, flush=True)
    for _ in sys.stdin:
        cluster.remove_node(second, allow_graceful=False)
        second = cluster.add_node(**NODE)
        print("again", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
