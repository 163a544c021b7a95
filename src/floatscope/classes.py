"""The names of the classes of token. How a token gets its class stands in token_classes."""

CLASSES = (
    "special",
    "mask",
    "whitespace",
    "punctuation",
    "template",
    "function",
    "content",
    "absent",
)

# Structure, against content; masks are neither.
STRUCTURAL = ("special", "whitespace", "punctuation", "template", "function")
