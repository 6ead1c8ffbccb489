"""What Schemathesis has to be told of this API."""

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx, value):
    """A batch: text goes as it is, whatever else comes as one JSON text a line."""
    import json

    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace")
    items = value if isinstance(value, list) else [value]
    return "\n".join(json.dumps(item) for item in items).encode("utf-8", errors="replace")
