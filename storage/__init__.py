# The folder lies at the top of the repository, where Python would find it by this name as well.
if __name__ != "ottla.storage":
    raise ImportError(
        "import ottla.storage, not storage: all packages of the broker are below ottla"
    )
