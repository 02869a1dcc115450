"""The `*_authorized_operations` fields of responses (KIP-430), without an authorizer.

One bit for each code of Kafka's AclOperation that exists for the type of resource.
"""

TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
# READ, DELETE and DESCRIBE.
GROUP_OPERATIONS = sum(1 << bit for bit in (3, 6, 8))
NOT_REQUESTED = -2147483648
