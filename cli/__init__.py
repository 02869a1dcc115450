# The folder lies at the top of the repository, where Python would find it by this name as well.
if __name__ != "ottla.cli":
    raise ImportError("import ottla.cli, not cli: all packages of the broker are below ottla")
