# The folder lies at the top of the repository, where Python would find it by this name as well.
if __name__ != "ottla.broker":
    raise ImportError("import ottla.broker, not broker: all packages of the broker are below ottla")
