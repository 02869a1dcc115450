"""Recognises clients that speak another protocol than Kafka's, by their first bytes.

Read as a frame's length, "GET " is 1.2 billion, a TLS hello 370 million: Kafka logs an "invalid
receive" of that size, and operators search the web for it. This broker logs the protocol instead.
"""

HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")

# The smallest size that the first bytes of those protocols make when read as a frame's length (a
# TLS alert's, 352 million). Smaller ones need no closer look.
FOREIGN_SIZE = 0x15030000


def recognise(first_bytes: bytes) -> str | None:
    """Name the protocol that the first four bytes of a connection belong to, or None.

    Returns "HTTP", "TLS", "a TLS alert" or "SSH".
    """
    if first_bytes[:4] in HTTP_METHODS:
        return "HTTP"
    if first_bytes[:2] == b"\x16\x03":
        return "TLS"
    if first_bytes[:2] == b"\x15\x03":
        return "a TLS alert"
    if first_bytes[:4] == b"SSH-":
        return "SSH"
    return None


def explanation(protocol: str, listener_name: str) -> str:
    """The probable cause and its remedy, for the log."""
    if protocol == "HTTP":
        return f"listener {listener_name} speaks the Kafka protocol, not HTTP; responded 400"
    if protocol == "TLS":
        return (
            f"listener {listener_name} is not encrypted; set the client's security.protocol to "
            "PLAINTEXT or SASL_PLAINTEXT, or connect to a TLS listener"
        )
    if protocol == "a TLS alert":
        return "the client gave up a TLS handshake, perhaps because of this broker's certificate"
    return f"listener {listener_name} speaks the Kafka protocol"


def http_response(listener_name: str, host: str, port: int) -> bytes:
    """A complete HTTP/1.1 response that explains what this port is."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    body = (
        "This is a Kafka port: it speaks the Kafka protocol, not HTTP.\n"
        f"Point a Kafka client at it, with bootstrap.servers={where} "
        f"(listener {listener_name}).\n"
    ).encode()
    head = (
        "HTTP/1.1 400 Bad Request\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
