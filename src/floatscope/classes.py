"""The names of the classes of token, and the function words. How a token gets its class stands in
token_classes; here nothing needs a model."""

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

# English words that carry grammar rather than content.
FUNCTION_WORDS = frozenset(
    """a an the this that these those my your his her its our their and or but nor so yet if
    then than as because while although though unless until since when where whether who
    whom whose which what why how i you he she it we they me him us them mine yours hers
    ours theirs myself himself herself itself themselves of in on at by for with about
    against between into through during before after above below to from up down out off
    over under again further once here there all any both each few more most other some such
    no not only own same too very can will just should now is am are was were be been being
    have has had having do does did doing would could may might must shall also per via
    within without upon among toward towards""".split()
)
