"""What both compilers of codecs write their source with."""

from ottla.protocol.source_writer import SourceWriter


def test_lines_know_the_fields_they_are_about() -> None:
    writer = SourceWriter("def f():\n    if 1:", {})
    writer.path = ["topics", "name"]
    writer.emit("a = 1")
    fields = (("topics.name", "h", "a"), ("topics.id", "i", "b"))
    writer.emit_fields("b = 2", fields)
    writer.finish("    return a + b")
    assert writer.source == "def f():\n    if 1:\n        a = 1\n        b = 2\n    return a + b\n"
    assert writer.line_fields == {3: (("topics.name", "", ""),), 4: fields}
    assert writer.names["LINES"] is writer.line_fields
    exec(compile(writer.source, "codec", "exec"), writer.names)
    assert writer.names["f"]() == 3  # type: ignore[operator]


def test_an_object_has_one_name() -> None:
    writer = SourceWriter("", {"known": list})
    assert writer.name("x", list) == "known"
    first = writer.name("codec", dict)
    assert writer.name("other", dict) == first
    assert writer.names[first] is dict
    assert len({first, writer.name("codec", set), writer.variable("codec")}) == 3
