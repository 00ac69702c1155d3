"""A client that sends requests from its standard input, with http.client, which offers h2c here."""

import http.client
import sys
from urllib.parse import urlsplit

connections: dict[str, http.client.HTTPConnection] = {}
OFFER = {
    "Connection": "Upgrade, HTTP2-Settings",
    "Upgrade": "h2c",
    "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA",
}
for line in sys.stdin:
    method, url, framing, text = line.rstrip("\n").split("\t")
    parts = urlsplit(url)
    if parts.netloc not in connections:
        connections[parts.netloc] = http.client.HTTPConnection(parts.netloc, timeout=20)
    connection = connections[parts.netloc]
    body = text.encode() or None
    if framing == "chunked" and body is not None:
        connection.request(method, parts.path, iter([body]), OFFER, encode_chunked=True)
    else:
        connection.request(method, parts.path, body, OFFER)
    answer = connection.getresponse()
    sys.stdout.write(f"{answer.status}\t{answer.read().decode()}\n")
    sys.stdout.flush()
