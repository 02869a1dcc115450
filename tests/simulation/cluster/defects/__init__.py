"""Known defects as patches: the simulation must find each. See `__main__`."""
