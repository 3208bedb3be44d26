"""What events are about, and the sentences in which they are told."""

from __future__ import annotations

from synth.records import Domain

_OCCASIONS = {
    Domain.WORK: "budget meeting|shift handover|training day|client workshop|staff assembly|safety drill|project review|"
    "job fair|night inventory|panel talk|team lunch|open house",
    Domain.SOCIAL: "birthday dinner|street party|class reunion|garden barbecue|farewell evening|wedding brunch|"
    "family picnic|dance night|charity supper|games evening|housewarming|lantern walk",
    Domain.HEALTH: "yearly check-up|blood test|breathing class|eye examination|posture course|swimming lesson|"
    "heart kitchen class|stress seminar|dental visit|first aid refresher|sleep consultation|fitness test",
    Domain.LEISURE: "pottery course|open-air concert|bird walk|flea market|film festival|canoe trip|chess tournament|"
    "photo exhibition|poetry night|model train show|herb hike|puppet play",
    Domain.ADMIN: "passport appointment|tenants' meeting|car registration|parcel complaint|key handover|voting day|"
    "school enrolment|recycling round|address change|parking permit hearing",
    Domain.FINANCE: "mortgage talk|tax consultation|savings review|pension briefing|insurance claim|loan meeting|"
    "donation auction|rent negotiation|stock seminar|household audit",
}  # fmt: skip
_PLACES = {
    Domain.WORK: "Centre Office House Hall Tower",
    Domain.SOCIAL: "Garden House Terrace Inn Hall",
    Domain.HEALTH: "Clinic Practice Institute Baths",
    Domain.LEISURE: "Park Theatre Mill Harbour Gallery",
    Domain.ADMIN: "Office Townhouse Depot Bureau",
    Domain.FINANCE: "Bank Exchange Office Chambers",
}
OCCASIONS = {domain: tuple(text.split("|")) for domain, text in _OCCASIONS.items()}
PLACES = {domain: tuple(text.split()) for domain, text in _PLACES.items()}

OPENING = "On {date}, {name} went to the {occasion} at {place}."
"""The first sentence of every narrative; what an event is about is read from it."""

COMPANY = (
    "{people} came along and made the hours pass quickly.",
    "It was good to have {people} there from the beginning to the end.",
    "Without {people} it would have been a different day.",
)
AGENCY = {
    "happens_to_user": "None of this had been planned; the invitation came as a surprise only a few days before.",
    "user_initiated": "The idea was {name}'s own, and the place had been booked long before anybody else thought of it.",
    "co_created": "It had been arranged together with others, and everyone had taken over a part of the preparations.",
}
MIDDLE = {
    Domain.WORK: (
        "A long agenda had to be worked through, and for once nobody looked at a telephone.",
        "People from several departments sat at one table and argued about how to share the load fairly.",
    ),
    Domain.SOCIAL: (
        "There was laughter at every table, and old jokes were told as if nobody had ever heard them.",
        "Somebody had put up lamps, and the conversations went on long after the plates were empty.",
    ),
    Domain.HEALTH: (
        "The questions were patient, the answers honest, and the advice was simple enough to be followed.",
        "There was time to ask everything, and nothing was brushed aside as too small to matter.",
    ),
    Domain.LEISURE: (
        "For a while there was nothing to do but to look, to try things out and to forget the clock.",
        "Beginners and old hands stood side by side, and mistakes were part of the fun.",
    ),
    Domain.ADMIN: (
        "The forms were longer than expected, but every question found somebody who knew the answer.",
        "A number had to be drawn, and the line moved slowly past the same three posters.",
    ),
    Domain.FINANCE: (
        "Columns of figures were compared line by line, and every assumption had to be explained.",
        "Somebody had brought coloured charts, and the sober ones turned out to be the useful ones.",
    ),
}
CHARACTER = (
    "It showed how {trait} {name} can be, even when things take longer than promised.",
    "Whoever knows {name} as {trait} would not have been surprised by any of it.",
)
CHANGE = (
    "One thing will be different from now on, and it has to do with {topic}.",
    "It also led to a decision that concerns {topic}.",
)
GOAL = "It was a step towards a larger aim as well, which {name} puts like this: {statement}"
FEELING = {
    "positive": (
        "The way home felt short, and the mood was light.",
        "What remained was the good feeling of time well spent.",
    ),
    "neutral": (
        "Nothing spectacular came of it, and that was perfectly fine.",
        "It was neither a triumph nor a defeat, just a day that had to be lived.",
    ),
    "negative": (
        "The way home felt long, and it took a while to shake off the disappointment.",
        "Not much went as hoped, and the evening ended earlier than planned.",
    ),
    "bittersweet": (
        "It was good to have been there, and it hurt a little to leave.",
        "Pleasure and regret kept each other company on the way home.",
    ),
}
PADDING = (
    "The smell of old wood and fresh paint hung in the air from the first minute to the last.",
    "Small things had to be improvised, but nobody seemed to mind for long.",
    "Between the main parts there was room for short conversations in the corridor.",
    "A few people left early, the others moved closer together and stayed.",
    "Outside, ordinary life went on as if nothing was happening behind these doors.",
    "In the end everybody helped to put the chairs back where they belonged.",
)
RESULTS = {
    "positive": "It went better than expected and opened a door.",
    "neutral": "Everything was settled as it should be.",
    "negative": "It brought less than hoped and needs another try.",
    "bittersweet": "It closed one chapter and began another.",
}
EMOTIONS = {
    "positive": ("relieved and cheerful", "proud", "grateful"),
    "neutral": ("calm", "matter-of-fact", "composed"),
    "negative": ("disappointed", "annoyed", "tired and let down"),
    "bittersweet": ("wistful", "moved", "torn between joy and regret"),
}
FOLLOW_UPS = (
    "Write down what was agreed at {place}.",
    "Thank the people who made the {occasion} possible.",
    "Sleep on it before deciding anything else.",
    "Tell someone at home how it went.",
)
GOAL_FOLLOW_UP = "Take the next small step towards the goal: {statement}"
GROUNDING = (
    "Somebody who is {trait} would approach it in just this way.",
    "It fits a life in {city} and an interest in {major}.",
    "The type {mbti} shows in how the day was handled.",
)

# --- memory threads --------------------------------------------------------------------------------------------------------

THREAD = "From the {first} to the {last}: later days throw a new light on the first one."

# --- conversations ---------------------------------------------------------------------------------------------------------

GOALS = (
    "To sort out what the {occasion} at {place} means for the coming weeks.",
    "To think aloud about the {occasion} at {place} with somebody who listens.",
    "To remember the details of the {occasion} at {place} and decide what comes next.",
)
SUMMARIES = (
    "The user tells about the {occasion} at {place} and how it felt. Details come up one after the other. In the end the"
    " next steps are clear.",
    "The user comes back from the {occasion} at {place} and wants to talk. They go through what happened and what follows"
    " from it.",
)
FIRST_WORDS = (
    "Hi, I am back from the {occasion} at {place} and need to think aloud.",
    "Hello, do you have a moment? The {occasion} at {place} is still on my mind.",
    "I wanted to tell you about the {occasion} at {place}.",
)
LEADS = (
    "", "", "", "Then there is this:", "What else can I say?", "Let me go on.", "That is not all.",
    "Oh, and before I forget:",
    "You asked, so here it is.", "To be honest, I keep coming back to it.", "Where was I?", "Right, and something else.",
    "It sounds like a detail, but it counts for me.", "I never told you, I think.", "Good question, I am not sure yet.",
    "While we are at it.", "Funny how things come together.", "I should explain that a bit.",
)  # fmt: skip
CHANGED = (
    "But that is over.", "Well, things have changed.", "That was then.", "Not any longer, though.", "But listen to this.",
    "There has been a change.",
)  # fmt: skip
KNOWN_ALREADY = (
    "As you may remember:", "I think I mentioned it once.", "You know this one already.", "As before:", "Nothing new here:",
)  # fmt: skip
TAILS = (
    "", "", "", "", "What would you do?", "Does that make sense?", "I am curious what you think.", "Strange, isn't it?",
    "At least that is how I see it.", "It has been going round in my head.", "Maybe I make too much of it.",
    "You see what I mean?",
)  # fmt: skip
PAUSES = (
    "Give me a second to collect my thoughts.",
    "Hm, that is a fair point, let me think about it.",
    "You are right, I should not rush this.",
    "Thanks, it helps to hear that from outside.",
    "I like the way you put it.",
    "Let me breathe for a moment, then I will go on.",
)
FAREWELLS = (
    "Thank you, that was what I needed.", "All right, that is enough for today.",
    "Thanks for listening, I feel clearer now.",
)  # fmt: skip

LISTENING = (
    "Thank you for telling me.", "I hear you.", "That gives me a clearer picture.", "I can follow that.",
    "It is good that you say it so openly.", "That deserves some attention.", "I appreciate the detail.",
    "There is a lot in what you just said.", "Let us stay with that briefly.", "I see why it stays with you.",
)  # fmt: skip
RECALLS = (
    'You said "{keyword}", and it seems to carry some weight for you.',
    'I noticed the words "{keyword}", they sound like something to hold on to.',
    'If I understand correctly, "{keyword}" is what stands out here.',
    'I will keep "{keyword}" in mind as we go on.',
    'It could help to ask what "{keyword}" really means to you.',
)
ADVICE = (
    "Sometimes it helps to separate what can be influenced from what cannot.",
    "One approach could be to write the thought in a single line and look at it again tomorrow.",
    "A useful test is to imagine telling it to somebody whom you trust completely.",
    "It can be wise to decide only the next step and to leave the rest open.",
    "Change is rarely a straight line, more like a path with bends.",
    "It might be enough to notice what gives you energy and what takes it away.",
    "If it feels like too much, cutting the question into pieces often makes it lighter.",
    "There is no need to solve everything at once, and pausing is allowed.",
    "You could treat this as an experiment and see how it feels before you judge it.",
    "Being kind to yourself is a practical strategy here, not a luxury.",
    "Think of it as tuning an instrument, small corrections are what makes it sound right.",
    "What looks like hesitation is often careful thinking.",
)
QUESTIONS = (
    "What matters most to you about it?", "How would you like it to continue?", "What would make it easier?",
    "Is there anything that you would rather leave as it is?", "What does your gut say?",
    "Shall we look at what follows from it?",
    "What would be a good outcome in your eyes?", "Which part of it should we look at more closely?",
    "What else belongs to the picture?", "How does it sit with you when you say it aloud?",
)  # fmt: skip
CLOSING_REPLIES = (
    "You have thought this through with care, and the next step is yours to choose. I am here whenever you want to go on.",
    "It was good to follow your thoughts today. Take your time, and come back when there is news.",
)
