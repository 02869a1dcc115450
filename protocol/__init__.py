# The folder lies at the top of the repository, where Python would find it by this name as well.
if __name__ != "ottla.protocol":
    raise ImportError(
        "import ottla.protocol, not protocol: all packages of the broker are below ottla"
    )
