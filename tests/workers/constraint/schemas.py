"""Schemas drawn at random, of the kinds that clients send."""

import random
from typing import Any

NAMES = ("name", "age", "tags", "const", "a b", 'q"q', "é", "items", "x1", "kind")
WORDS = ("red", "green", "red hot", "", "a\nb", 'say "hi"', "é🍎", "</think>", "true", "1")


def drawn_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """One that has valid answers, and short ones among them."""
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "const", "pattern"]
    if depth < 3:
        kinds += ["object"] * 4 + ["array"] * 2 + ["any"]
    return _schema(draw, draw.choice(kinds), depth)


def _schema(draw: random.Random, kind: str, depth: int) -> dict[str, Any]:
    match kind:
        case "integer":
            least = draw.randint(-50, 50)
            return draw.choice(({}, {"minimum": least, "maximum": least + draw.randint(0, 300)})) | {"type": "integer"}
        case "number":
            return draw.choice(({}, {"minimum": 0, "maximum": draw.randint(1, 9)})) | {"type": "number"}
        case "string":
            least = draw.randint(0, 3)
            return draw.choice(({}, {"minLength": least, "maxLength": least + draw.randint(0, 9)})) | {"type": "string"}
        case "enum":
            return {"enum": draw.sample((*WORDS, 1, -2.5, None, True, ["x", 1], {"k": "v"}), draw.randint(1, 6))}
        case "const":
            return {"const": draw.choice((*WORDS, 7, False, None))}
        case "pattern":
            return {"type": "string", "pattern": draw.choice(("^[a-f0-9]{4}$", "^(yes|no)$", "^[A-Z][a-z]{0,5}$"))}
        case "object":
            return _object(draw, depth)
        case "array":
            least = draw.randint(0, 2)
            return {
                "type": "array",
                "items": drawn_schema(draw, depth + 1),
                "minItems": least,
                "maxItems": least + draw.randint(0, 3),
            }
        case "any":
            return {"anyOf": [drawn_schema(draw, depth + 1) for _ in range(draw.randint(1, 3))]}
        case _:
            return {"type": kind}


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(NAMES, draw.randint(0, 4))
    required = [name for name in names if draw.random() < 0.6]
    further = draw.choice(({}, {"additionalProperties": False}, {"additionalProperties": {"type": "integer"}}))
    return {
        "type": "object",
        "properties": {name: drawn_schema(draw, depth + 1) for name in names},
        "required": required,
        **further,
    }
