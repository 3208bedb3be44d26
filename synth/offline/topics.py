"""The topics of the offline writer: how a fact about each is remembered and how it is said.

Every memory sentence ends with its *anchor*, an invented name that stays the same when the fact is adjusted; at least one
keyword is thus kept by every update, as the paper's information preservation asks (appendix A).
"""

from __future__ import annotations

from dataclasses import dataclass

from synth.records import Track

_POOLS = {
    "job": "nurse teacher lawyer baker plumber welder designer pilot chemist editor farmer barber dentist analyst manager "
    "translator librarian architect carpenter cook accountant actor biologist broker cashier coach composer courier curator "
    "detective driver engineer florist gardener geologist historian journalist judge locksmith mechanic musician painter "
    "photographer poet porter printer producer programmer ranger roofer sailor sculptor singer surgeon tailor tutor waiter",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November December",
    "hobby": "running swimming cycling climbing rowing skating skiing surfing fencing boxing sailing fishing hiking dancing "
    "bowling kayaking bouldering camping diving gliding golfing hunting jogging paddling rafting singing sketching walking",
    "dish": "ramen sushi pizza tacos curry falafel lasagna pancakes dumplings risotto paella gumbo chili waffles burritos "
    "gnocchi noodles bagels burgers casserole chowder couscous crepes goulash guacamole nachos omelets pudding quiche "
    "ravioli salmon spaghetti strudel tiramisu tofu",
    "instrument": "piano guitar violin cello flute drums banjo harp trumpet clarinet accordion oboe trombone mandolin "
    "bassoon fiddle harmonica horn lute lyre organ piccolo sitar tuba viola zither",
    "subject": "physics history botany geology latin algebra painting pottery cooking chemistry drama economics geography "
    "grammar journalism law logic medicine music nursing optics poetry politics robotics statistics",
    "sport": "tennis hockey rugby squash handball soccer baseball volleyball cricket curling darts golf polo badminton "
    "basketball lacrosse softball",
    "role": "driver cook tutor guide gardener treasurer librarian cashier trainer mentor usher painter singer carpenter "
    "planner secretary",
    "color": "red blue green black white silver yellow orange purple brown golden grey pink",
    "drink": "coffee tea cocoa juice milk cider lemonade espresso water soda",
    "relative": "sister brother mother father cousin aunt uncle niece nephew",
    "topic": "whales volcanoes castles robots gardens pirates planets spies glaciers wolves emperors bridges deserts "
    "submarines forests bees caves clocks comets dinosaurs dragons falcons ghosts islands jungles kings lighthouses maps "
    "monks museums owls pyramids railways rivers sharks ships storms temples tigers trains vikings witches",
    "amount": "20 30 40 50 60 70 80 90 100 120 150 200 250 300 400 500",
}
POOLS: dict[str, tuple[str, ...]] = {name: tuple(words.split()) for name, words in _POOLS.items()}


@dataclass(frozen=True, slots=True)
class Topic:
    """Templates of one topic.

    Attributes:
        name: The topic.
        track: The stream that its facts belong to.
        slot: The slot that an adjustment changes; ``{slot}`` in every template, its former value ``{old}``.
        pool: Where the slot's words come from; None for an invented name.
        memory: The memory sentence; ``{person}`` is its subject and it ends with ``{anchor}.``
        new: How the user tells a new fact.
        adjust: How the user tells that the fact has changed.
        repeat: How the user mentions what is known.
        fixed: A further slot that never changes, with its pool (the relative in "the sister Ana").
    """

    name: str
    track: Track
    slot: str
    pool: str | None
    memory: str
    new: tuple[str, ...]
    adjust: tuple[str, ...]
    repeat: tuple[str, ...]
    fixed: str | None = None


TOPICS = (
    Topic(
        "home",
        Track.RELATIONSHIP,
        "city",
        None,
        "{person} lives in {city} with {anchor}.",
        (
            "I live in {city} with {anchor}.",
            "Home is {city}, I share a flat with {anchor}.",
            "{anchor} and I live in {city}.",
        ),
        ("I moved from {old} to {city} with {anchor}.", "{anchor} and I left {old} and now live in {city}."),
        ("I still live in {city} with {anchor}.",),
    ),
    Topic(
        "job",
        Track.CAREER,
        "job",
        "job",
        "{person} works as a {job} at {anchor}.",
        ("I work as a {job} at {anchor}.", "I am a {job} over at {anchor}.", "{anchor} hired me as a {job}."),
        ("I am no longer a {old} but a {job} at {anchor}.", "{anchor} made me a {job}, I used to be a {old}."),
        ("I am still a {job} at {anchor}.",),
    ),
    Topic(
        "dog",
        Track.HEALTH,
        "day",
        "day",
        "{person} walks every {day} with the dog {anchor}.",
        ("Every {day} I walk with my dog {anchor}.", "My dog {anchor} gets a long walk on {day}."),
        (
            "I now walk on {day} instead of {old} with my dog {anchor}.",
            "My dog {anchor} gets the walk on {day} now, not {old}.",
        ),
        ("I still walk every {day} with my dog {anchor}.",),
    ),
    Topic(
        "hobby",
        Track.HEALTH,
        "hobby",
        "hobby",
        "{person} goes {hobby} with {anchor}.",
        (
            "I go {hobby} with {anchor}.",
            "{anchor} takes me {hobby} these days.",
            "You will often find me {hobby} with {anchor}.",
        ),
        ("I gave up {old} and go {hobby} with {anchor} now.", "{anchor} and I switched from {old} to {hobby}."),
        ("I still go {hobby} with {anchor}.",),
    ),
    Topic(
        "dish",
        Track.PREFERENCE,
        "dish",
        "dish",
        "{person} orders the {dish} at {anchor}.",
        ("I always order the {dish} at {anchor}.", "{anchor} makes the {dish} I love."),
        (
            "I am tired of the {old} and now order the {dish} at {anchor}.",
            "At {anchor} I take the {dish} now, not the {old}.",
        ),
        ("I still order the {dish} at {anchor}.",),
    ),
    Topic(
        "instrument",
        Track.PREFERENCE,
        "instrument",
        "instrument",
        "{person} learns the {instrument} from {anchor}.",
        ("I learn the {instrument} from {anchor}.", "{anchor} teaches me the {instrument}."),
        (
            "I dropped the {old}, now I learn the {instrument} from {anchor}.",
            "{anchor} teaches me the {instrument} now, not the {old}.",
        ),
        ("I still learn the {instrument} from {anchor}.",),
    ),
    Topic(
        "trip",
        Track.PREFERENCE,
        "month",
        "month",
        "{person} travels in {month} to {anchor}.",
        ("I will travel in {month} to {anchor}.", "My trip to {anchor} is booked for {month}."),
        (
            "My trip moved from {old} to {month}, but I still go to {anchor}.",
            "I go to {anchor} in {month} now, not in {old}.",
        ),
        ("As I said, I travel in {month} to {anchor}.",),
    ),
    Topic(
        "book",
        Track.PREFERENCE,
        "topic",
        "topic",
        "{person} reads about {topic} in a book by {anchor}.",
        ("I read about {topic} in a book by {anchor}.", "{anchor} wrote the book about {topic} that I read."),
        (
            "I finished the {old} book, now I read about {topic} in one by {anchor}.",
            "{anchor} wrote on {old}, now I read the one about {topic}.",
        ),
        ("I still read about {topic} in that book by {anchor}.",),
    ),
    Topic(
        "friend",
        Track.RELATIONSHIP,
        "city",
        None,
        "{person} has a friend in {city} called {anchor}.",
        ("I have a friend in {city} called {anchor}.", "My friend {anchor} has a house in {city}."),
        ("My friend {anchor} moved from {old} to {city}.", "My friend {anchor} left {old} and is in {city} now."),
        ("My friend {anchor} is still in {city}.",),
    ),
    Topic(
        "study",
        Track.CAREER,
        "subject",
        "subject",
        "{person} studies {subject} at {anchor}.",
        ("I study {subject} at {anchor}.", "I signed up for {subject} at {anchor}."),
        ("I changed from {old} to {subject} at {anchor}.", "At {anchor} I study {subject} now, no more {old}."),
        ("I still study {subject} at {anchor}.",),
    ),
    Topic(
        "sport",
        Track.HEALTH,
        "sport",
        "sport",
        "{person} plays {sport} for {anchor}.",
        ("I play {sport} for {anchor}.", "{anchor} took me into the {sport} team."),
        ("I stopped {old} and play {sport} for {anchor}.", "{anchor} wants me for {sport} now, not {old}."),
        ("I still play {sport} for {anchor}.",),
    ),
    Topic(
        "club",
        Track.RELATIONSHIP,
        "role",
        "role",
        "{person} helps as a {role} in the club {anchor}.",
        ("I help as a {role} in the club {anchor}.", "The club {anchor} has me as a {role}."),
        ("In the club {anchor} I am a {role} now, not a {old}.", "I went from {old} to {role} in the club {anchor}."),
        ("I still help as a {role} in the club {anchor}.",),
    ),
    Topic(
        "car",
        Track.PREFERENCE,
        "color",
        "color",
        "{person} drives a {color} {anchor}.",
        ("I drive a {color} {anchor}.", "My new car is a {color} {anchor}."),
        (
            "I had the {old} car painted, now I drive a {color} {anchor}.",
            "My {anchor} is {color} now and not {old} any more.",
        ),
        ("I still drive the {color} {anchor}.",),
    ),
    Topic(
        "drink",
        Track.PREFERENCE,
        "drink",
        "drink",
        "{person} drinks {drink} every morning at {anchor}.",
        ("Every morning I drink {drink} at {anchor}.", "I start the day with {drink} at {anchor}."),
        ("I drink {drink} at {anchor} every morning, no more {old}.", "At {anchor} I switched from {old} to {drink}."),
        ("I still drink {drink} every morning at {anchor}.",),
    ),
    Topic(
        "family",
        Track.RELATIONSHIP,
        "day",
        "day",
        "{person} visits on {day} the {relative} {anchor}.",
        ("On {day} I visit my {relative} {anchor}.", "I see my {relative} {anchor} every {day}."),
        (
            "I visit my {relative} {anchor} on {day} now, not on {old}.",
            "The visit to my {relative} {anchor} moved from {old} to {day}.",
        ),
        ("I still visit my {relative} {anchor} on {day}.",),
        fixed="relative",
    ),
    Topic(
        "savings",
        Track.CAREER,
        "amount",
        "amount",
        "{person} saves {amount} euros a month at {anchor}.",
        ("I save {amount} euros a month at {anchor}.", "Each month {amount} euros go to my account at {anchor}."),
        (
            "I raised it from {old} to {amount} euros a month at {anchor}.",
            "At {anchor} I save {amount} euros a month now, not {old}.",
        ),
        ("I still save {amount} euros a month at {anchor}.",),
    ),
)

OPENERS = ("", "", "", "Hey! ", "By the way, ", "Guess what: ", "Oh, ", "So, ", "You know, ", "Well, ")
CLOSERS = ("", "", "", " Crazy, right?", " It feels good.", " Anyway.", " I am happy about it.", " Long story.")
SMALL_TALK = (
    "How are you today?", "The weather is awful here.", "Thanks for the help yesterday.", "Can you tell me a joke?",
    "What a day.", "I need some rest.", "I slept badly.",
)  # fmt: skip
REPLIES = (
    "Nice!",
    "Sounds great.",
    "Good to know.",
    "Tell me more.",
    "I see.",
    "Wonderful!",
    "Thanks for sharing.",
    "Okay!",
)
