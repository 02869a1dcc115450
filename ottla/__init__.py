"""Ottla: a broker server that speaks the Kafka wire protocol.

The public interface is:

- `ottla.testing`: the embedded broker, its faults, and the pytest fixtures
- `ottla.policies`: what the classes of policies get and raise
- the command `ottla`
- the package `pyspark_ottla`
- the settings and the metrics that the documentation lists

Everything else is private and may change in any version without notice.
"""

import os

__version__ = "0.1.0"

# In a checkout the parts stand beside this folder, and in an installation in it.
_above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if os.path.exists(os.path.join(_above, "setup.py")):
    __path__.append(_above)
