# The folder lies at the top of the repository, where Python would find it by this name as well.
if __name__ != "ottla.controller":
    raise ImportError(
        "import ottla.controller, not controller: all packages of the broker are below ottla"
    )
