"""What FastAPI cannot write into the OpenAPI description by itself: errors, filters, and which methods a path takes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from deltamem.memory import FILTER_WORDS
from deltamem.server.problems import ProblemRecord

FILTER = {"$ref": "#/components/schemas/Filter"}
_TEXT = {"type": "string"}
# One type a branch: some clients of MCP cannot read lists of types.
_VALUE = {"anyOf": [*({"type": t} for t in ("string", "number", "boolean", "null")), {"type": "array", "items": _TEXT}]}
_LIST = {"type": "array", "items": _VALUE}
_ORDERED = {"anyOf": [{"type": "number"}, _TEXT]}
_FILTERS = {"type": "array", "minItems": 1, "items": FILTER}
SCHEMAS: dict[str, Any] = {
    "Filter": {
        "title": "Filter",
        "description": "Conditions by key of the metadata, all of which must hold; a value means that the key equals it.",
        "type": "object",
        "properties": {"AND": _FILTERS, "OR": _FILTERS, "NOT": {"anyOf": [FILTER, _FILTERS]}},
        "additionalProperties": {
            "anyOf": [
                _VALUE,
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": False,
                    "properties": {
                        **dict.fromkeys(("eq", "ne"), _VALUE),
                        **dict.fromkeys(("in", "nin"), _LIST),
                        **dict.fromkeys(("gt", "gte", "lt", "lte"), _ORDERED),
                        **dict.fromkeys(("contains", "icontains"), _TEXT),
                    },
                },
            ]
        },
    },
}
"""Filters as JSON Schema; `deltamem.filters` reads them."""

NOT_BLANK = r"[^\s\x1c-\x1f\x85]"
"""Some character that neither JavaScript nor Python counts as white space."""

METADATA = {
    "type": "object",
    "description": "A flat object; values are texts, numbers, booleans, null or lists of texts.",
    "propertyNames": {"minLength": 1, "not": {"enum": list(FILTER_WORDS)}},
    "additionalProperties": _VALUE,
}


class Application(FastAPI):
    """An application whose description is whole."""

    def openapi(self) -> dict[str, Any]:
        """The description."""
        if self.openapi_schema is None:
            described = super().openapi()
            described["components"]["schemas"] |= {"ProblemRecord": ProblemRecord.model_json_schema(), **SCHEMAS}
            for path in described["paths"].values():
                for operation in path.values():
                    for parameter in operation.get("parameters", ()):
                        # JSON in a query parameter, which is content and no plain text.
                        if parameter["name"] == "filters":
                            del parameter["schema"]
                            parameter["content"] = {"application/json": {"schema": FILTER}}
        assert self.openapi_schema is not None
        return self.openapi_schema

    def methods(self, path: str) -> str:
        """The methods that a path takes, as the header Allow lists them."""
        return ", ".join(sorted(method.upper() for method in self.openapi()["paths"].get(path, {})))
