"""Where the schemas in a JSON Schema are: a property that is called like a keyword is none."""

from collections.abc import Iterator
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

ONE = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
"""Keywords with a schema under them."""
LISTED = frozenset(["allOf", "anyOf", "items", "oneOf", "prefixItems"])
"""Keywords with a list of schemas under them."""
NAMED = frozenset(["$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"])
"""Keywords with schemas under names of the client's own."""


def schemas(root: dict[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    """`root` and all schemas within it that are objects, each with its path such as `$.properties.name`.

    What stands under `const`, `enum`, `default` and the like is a value, whatever it looks like. References are not
    followed: what they lead to within `root` is told where it stands.
    """
    left: list[tuple[str, Json]] = [("$", root)]
    while left:
        path, schema = left.pop()
        if not isinstance(schema, dict):
            continue
        yield path, schema
        for key, value in schema.items():
            below = f"{path}.{key}"
            if isinstance(value, dict):
                if key in NAMED:
                    left += [(f"{below}.{name}", each) for name, each in value.items()]
                elif key in ONE:
                    left.append((below, value))
            elif isinstance(value, list) and key in LISTED:
                left += [(f"{below}[{index}]", each) for index, each in enumerate(value)]
