"""Passages of natural text for noise in the synthetic world, used if the user gives no such passages.

Each passage is a plain fact, written for this purpose. A passage is about as long as the first sentences of
the articles that the embedded pair read as noise in training. No passage is about a person of the synthetic
world.
"""

NOISE = (
    "The Danube rises in the Black Forest and flows through ten countries before it reaches the sea.",
    "Granite forms when molten rock cools slowly below the surface, which leaves its crystals large.",
    "A sundial tells the time by the shadow that a rod throws on a plate marked with the hours.",
    "Honeybees tell each other where flowers are by a dance whose angle points away from the sun.",
    "Tides follow the moon more than the sun, although the sun is by far the heavier of the two.",
    "The tea plant is an evergreen shrub; green and black tea come from the leaves of the same kind.",
    "A lighthouse lens is cut into rings, so that a large lens can be thin and still gather the light.",
    "Salt was once so dear that roads were named after the carts that carried it over the mountains.",
    "The violin has four strings tuned in fifths, and no frets to show where a note is to be found.",
    "Lichens are partnerships of a fungus and an alga, and grow on bare stone where little else can.",
    "Paper was first made from rags and bark beaten in water, then lifted on a sieve and left to dry.",
    "Sea otters hold hands while they sleep, so that the current does not carry them apart at night.",
    "A comet's tail points away from the sun, even when the comet itself is travelling outwards again.",
    "The abacus is still used in some markets, where a practised hand beats many a pocket calculator.",
    "Glaciers grind the rock beneath them to flour, which gives mountain lakes their milky blue colour.",
    "Cork is the bark of an oak that is peeled every nine years or so without any harm to the tree.",
    "Chess reached Europe by way of Persia, and the word for its end means that the king is helpless.",
    "Swifts eat, drink and sleep on the wing, and may stay in the air for months without once landing.",
    "The printing press with movable type made books cheap enough for people who had never owned one.",
    "Basalt columns with six sides form when a thick sheet of lava shrinks and cracks while it cools.",
    "A caravan crossed the desert by night in summer, and found its way by wells and by the stars.",
    "Bread rises because yeast feeds on sugar and gives off a gas that is caught in the stretchy dough.",
    "Whales were once land animals; the bones of a hind leg can still be found deep inside the body.",
    "The compass needle does not point to the pole itself, and the place it points to wanders slowly.",
)
