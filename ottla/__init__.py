"""Ottla: a broker server that speaks the Kafka wire protocol.

Public are `ottla.testing`, the command `ottla`, the package `pyspark_ottla`, the documented
settings and the documented metrics. Every other module may change in any version without notice.
"""

__version__ = "0.1.0"
