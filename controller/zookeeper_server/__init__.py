"""A server of ZooKeeper's client protocol over the embedded znode tree, for development and tests.

One process and no replication: if it ends, the cluster has no ZooKeeper until it is started again.
"""
