"""Settings of every test: property tests run the same examples each time.

A run that finds something new is worth having, but not during an unrelated
change: `OTTLA_EXPLORE=1` runs new random examples (and more of them), prints what reproduces a
failure, and is what to run after a change of what a property describes.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("explore" if os.environ.get("OTTLA_EXPLORE") else "repeatable")

# A shell starts what it puts into the background with SIGINT ignored, and so would be every process
# that a test starts and ends as Ctrl-C does. One that is handled here is the default to them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same for SIGHUP and nohup, under which a broker rightly does not stop at a SIGHUP.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
