"""Mapping rules and names at random: as people write them, and with every part of Java's syntax."""

from __future__ import annotations

import random

_VALUES = (
    *(
        "alice",
        "Bob",
        "kafka-1.example.com",
        "a b",
        "x/y",
        "Tkac\\, Adam",
        "Ümit",
        "日本",
        "#1",
        "",
    ),
    *(
        "a@b",
        "CN=x",
        "1",
        "DEFAULT",
        "aab",
        "abab",
        "Straße",
        "\U0001f600x",
        "e\u0301",
        "ΑΣ",
        "a\nb",
    ),
    *("a\r\n", "tab\there", "nul\\00", "x\u2028y", "\u0660", "A_b", "aaaa", "$1", "İı", "ǅ"),
)
_KEYS = ("CN", "OU", "O", "C", "DC", "L", "UID", "2.5.4.5", "cn")

_TEMPLATES = (
    *(
        "^CN=(.*?),OU=(.*?),.*$",
        "^CN=(.*?)(,.*)?$",
        "CN=([^,]*).*?",
        ".*CN=([^,]+).*",
        "^.*CN=([^,]+).*$",
    ),
    *(
        "(.*)",
        ".*",
        "^CN=(\\w+),.*$",
        "^CN=([a-zA-Z0-9.-]*).*$",
        "CN=(.)(.*)",
        "([^,]*),?",
        "^cn=(.*)$",
    ),
    *(
        "(?i)^cn=([^,]+).*$",
        "^CN=(?<name>[^,]+).*$",
        "^CN=(\\p{L}+).*$",
        "([^,]+,)*CN=([^,]+)(,[^,]+)*",
    ),
    *(
        "^CN=((\\\\, *|\\w)+)(,.*|$)",
        "^CN=([^,]+)(,OU=(z))?.*$",
        "(?:.*?)=(.*?)(?:,.*)?",
        "[^=]+=(.+?)(,.+)*",
    ),
    *("^(?:CN|UID)=(\\S+?)(?:,.*)?$", ".*?(\\d+).*", "([A-Z]+)=([^,+]*)[,+]?", "^CN=(.*),O=\\1$"),
    *(
        "(?=CN).*=(.*)",
        "^(?!OU)([^,]*).*",
        ".*(?<=,OU=)([^,]*).*",
        "CN=([^,]++)(.*+)",
        "(?>[^,]+)(.*)",
    ),
)
_REPLACEMENTS = (
    *(
        "$1",
        "$1",
        "$1",
        "$1",
        "$1@$2",
        "x",
        "",
        "$0",
        "$2$1",
        "$10",
        "$12",
        "$5$6",
        "$$1",
        "\\$1",
        "a\\\\b",
    ),
    *(
        "${name}",
        "${nope}",
        "$1;",
        "<$1>",
        "$",
        "$x",
        "u-$1",
        "$3",
        "$01",
        "$00",
        "a b",
        "$1,$2",
        "${1a}",
    ),
)
_ENDS = (
    "",
    "",
    "",
    "L",
    "U",
    "",
    "L",
    "U",
    "X",
    "LU",
    "L ",
    ",",
    ", DEFAULT",
    ",DEFAULT",
    "L,DEFAULT",
)

_ATOMS = (
    *(
        "a",
        "b",
        "=",
        ",",
        "CN",
        "O",
        "x",
        " ",
        ".",
        ".",
        "\\w",
        "\\d",
        "\\s",
        "\\S",
        "\\W",
        "\\D",
        "\\.",
        "\\\\",
    ),
    *(
        "[a-c]",
        "[^,]",
        "[^,=]",
        "[\\w.]",
        "[a-z&&[^b]]",
        "[^a-z]",
        "[A-Z[0-9]]",
        "[-a]",
        "[]a]",
        "[a&&b]",
    ),
    *(
        "\\p{L}",
        "\\p{Lu}",
        "\\P{L}",
        "\\p{Alpha}",
        "\\pL",
        "\\p{Punct}",
        "\\p{IsL}",
        "[\\p{L}&&[^a]]",
        "\\h",
    ),
    *(
        "\\v",
        "\\R",
        "\\x61",
        "\\u0041",
        "\\t",
        "\\Q.*\\E",
        "\\b",
        "\\B",
        "^",
        "$",
        "\\Z",
        "\\z",
        "\\A",
        "[^\\W]",
    ),
    *(
        "ü",
        "日",
        "[^\\x00-\\x7F]",
        "\\p{ASCII}",
        "[,=\\s]",
        "[\\p{Alnum}_-]",
        "\\x{1F600}",
        "(?s).",
        "[^a-c&&b-x]",
    ),
)
_REPEATS = (
    "",
    "",
    "",
    "",
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "*+",
    "++",
    "{2}",
    "{1,2}",
    "{1,}",
    "{0,2}?",
    "{2,3}+",
)


def random_name(source: random.Random) -> str:
    parts = []
    for _ in range(source.randrange(1, 5)):
        value = source.choice(_VALUES)
        if source.random() < 0.2:
            value += source.choice(_VALUES)
        parts.append(f"{source.choice(_KEYS)}={value}")
    return ",".join(parts)


def random_expression(source: random.Random, depth: int = 0) -> str:
    parts = []
    for _ in range(source.randrange(1, 5)):
        if depth < 3 and source.random() < 0.3:
            inside = random_expression(source, depth + 1)
            if source.random() < 0.3:
                inside += "|" + random_expression(source, depth + 1)
            opened = source.choice(
                ("(", "(", "(", "(?:", "(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!")
            )
            atom = f"{opened}{inside})"
        elif source.random() < 0.06:
            atom = f"\\{source.randrange(1, 4)}"
        else:
            atom = source.choice(_ATOMS)
        parts.append(atom + source.choice(_REPEATS))
    return "".join(parts)


def random_pattern(source: random.Random) -> str:
    shape = source.random()
    if shape < 0.4:
        return source.choice(_TEMPLATES)
    if shape < 0.55:
        return f"(?s).*?{random_expression(source)}.*"
    if shape < 0.7:
        return f"(?s)(.*?){random_expression(source)}(.*)"
    if shape < 0.85:
        return f"{random_expression(source)}|(?s:.*)"
    if shape < 0.96:
        return f"(?s:{random_expression(source)}|(.)|{random_expression(source)})*"
    damaged = list(source.choice(_TEMPLATES))
    damaged.insert(source.randrange(len(damaged)), source.choice("()[]{}*+?\\|^$&-"))
    return "".join(damaged)


def random_rules(source: random.Random) -> str:
    rules = []
    for _ in range(source.choice((1, 1, 1, 1, 2, 3))):
        if source.random() < 0.08:
            rules.append(
                source.choice(("DEFAULT", "", " ", "default", "DEFAULT x", "RULE:x/y", "ROLE:a/b/"))
            )
            continue
        pattern, replacement = random_pattern(source), source.choice(_REPLACEMENTS)
        rules.append(f"RULE:{pattern}/{replacement}/{source.choice(_ENDS)}")
    separator = source.choice((",", ", ", " , ", "\n", ",,"))
    return source.choice(("", "", " ", "\n")) + separator.join(rules)


def random_pair(source: random.Random) -> tuple[str, str]:
    """Rules, and the name of a certificate."""
    return random_rules(source), random_name(source)


_SERVICES = (
    "user",
    "App.SERVICE",
    "ABC_x_ABC",
    "Ümit",
    "a.b-c",
    "",
    "x y",
    "a1b2",
    "HTTP",
    "kafka",
)
_REALMS = ("REALM.COM", "REALM.COM", "OTHER.COM", "sub.REALM.COM", "")
_FORMATS = ("$1", "$1", "$1@$0", "$2", "$1_$2", "$0", "$", "$9", "x", "", "$1;$1", "$1$")
_MATCHES = (
    "",
    "(.*)",
    "(App\\..*)",
    "(.*@REALM.COM)",
    "([A-Z_]+)",
    "(a*)",
    "(\\w+)",
    "([^@]*@?[^@]*)",
)
_SUBSTITUTIONS = (
    *(
        "",
        "",
        "s/@.*//",
        "s/App\\.(.*)/$1/g",
        "s/ABC/XYZ/",
        "s/ABC/XYZ/g",
        "s/(.)/$1$1/g",
        "s/x*/-/g",
    ),
    *(
        "s/(.*)/$2/",
        "s/a/\\$/",
        "s/$/x/",
        "s/^/x/g",
        "s/[a-z&&[^b]]/-/g",
        "s/\\d/#/g",
        "s/(?<n>.)/${n}/",
    ),
)
_KERBEROS_ENDS = ("", "", "/L", "/U", "L", "/", "/g", "/LU")


def random_kerberos(source: random.Random) -> tuple[list[str], str]:
    """Rules, and a principal."""
    rules = []
    for _ in range(source.randrange(1, 4)):
        rules.append(
            f"RULE:[{source.choice((1, 1, 2, 2, 0, 3))}:{source.choice(_FORMATS)}]"
            f"{source.choice(_MATCHES)}{source.choice(_SUBSTITUTIONS)}{source.choice(_KERBEROS_ENDS)}"
        )
    if source.random() < 0.5:
        rules.append("DEFAULT")
    principal = source.choice(_SERVICES)
    if source.random() < 0.5:
        principal += "/" + source.choice(_SERVICES)
    if source.random() < 0.9:
        principal += "@" + source.choice(_REALMS)
    return rules, principal
