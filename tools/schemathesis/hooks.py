"""Hooks that teach Schemathesis the media types of this API."""

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx, value):
    """Serializes a batch. Text is sent unchanged, and any other value as one line of JSON per item."""
    import json

    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace")
    items = value if isinstance(value, list) else [value]
    return "\n".join(json.dumps(item) for item in items).encode("utf-8", errors="replace")
