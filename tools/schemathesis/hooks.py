"""Hooks that teach Schemathesis the media types of this API."""

import schemathesis


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Restores a constraint that the document states as an extension, because client generators misread it."""
    for schema in raw_schema["components"]["schemas"].values():
        names = schema.get("x-exactly-one-of")
        if names:
            # The server treats a field with the value `null` as a missing field.
            present = {"type": ["string", "object"]}
            schema["oneOf"] = [{"required": [name], "properties": {name: present}} for name in names]


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
