"""Plain chats of one person each, as a user tries the tool in the first minutes, and what must be remembered of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rewards.fidelity import bare_words


@dataclass(frozen=True, slots=True)
class Chat:
    """Two sessions, of which the second changes something, and what the bank has to say after both."""

    name: str
    sessions: tuple[dict[str, Any], ...]
    """As session files have them: ``{"id", "time", "turns"}``; see `deltamem.sessions.read_dialogues`."""
    facts: tuple[tuple[str, ...], ...]  # For each fact, the patterns that one memory must match, all of them
    gone: tuple[tuple[str, str], ...] = ()
    """Patterns of an old and a new value: the old may stand only beside the new one, or in a memory that calls it past."""
    unsaid: tuple[str, ...] = ()  # Patterns of what only the assistant said, which no memory may match


_PAST = (
    r"\b(?:used to|no longer|not|never|previous(?:ly)?|former(?:ly)?|worked|lived|until|instead|rather than|any ?more"
    r"|stopped|quit|gave up|given up|left|ended|cancell?ed|postponed"
    r"|(?:moved|switched|switching|changed) from|replac\w+)\b|n't\b"
)


def missing(texts: Iterable[str], chat: Chat) -> list[str]:
    """What is wrong with a bank that holds these memories after a chat, a line each; nothing if all is right.

    A fact counts as kept if one memory matches all its patterns, whatever the case. That a fact is kept only once shows
    in the old value being gone and no two memories having the same words.
    """
    memories = list(texts)
    wrong = [f"not kept: {' + '.join(fact)}" for fact in chat.facts if not any(_matches(text, *fact) for text in memories)]
    for old, new in chat.gone:
        stale = [text for text in memories if _matches(text, rf"\b(?:{old})\b") and not _matches(text, rf"{new}|{_PAST}")]
        wrong += [f"still there: {text}" for text in stale]
    wrong += [f"said by the assistant alone: {text}" for text in memories for word in chat.unsaid if _matches(text, word)]
    seen: set[str] = set()
    for text in memories:
        words = bare_words(text)
        if words in seen:
            wrong.append(f"kept twice: {text}")
        seen.add(words)
    return wrong


def _matches(text: str, *patterns: str) -> bool:
    return all(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def _session(number: int, time: str, *utterances: str) -> dict[str, Any]:
    """A session whose utterances are the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": text} for place, text in enumerate(utterances)]
    return {"id": f"s{number}", "time": time, "turns": turns}


CHATS = (
    Chat(
        "Ana",
        (
            _session(
                1,
                "2026-03-02T18:30",
                "Hi! I moved to Boston last week for a new job. I don't know anybody here yet.",
                "Welcome to Boston! The Common is lovely in spring. Did you come alone?",
                "With my dog, Olive. And I'm living on coffee, five cups a day.",
                "That's a lot of coffee! You might try decaf in the afternoon.",
            ),
            _session(
                2,
                "2026-06-08T19:10",
                "Big change: the company sent me to Denver, so I live there now.",
                "Denver is great for hiking. How are you settling in?",
                "Good! My sister is visiting me next weekend. Oh, and I've switched to tea, no more coffee.",
                "Green tea is a fine choice.",
            ),
        ),
        (("denver",), (r"\bdog\b|olive",), ("sister",), (r"\btea\b",)),
        (("boston", "denver"), ("coffee|five cups", r"\btea\b")),
        ("decaf", "hiking", r"\bgreen\b", "the common"),
    ),
    Chat(
        "Ben",
        (
            _session(
                1,
                "2026-01-12T08:15",
                "I'm a line cook at a steakhouse and I've got two kids, Mia and Leo.",
                "Busy life! Kids often like to help with baking.",
                "Ha, maybe. I'm vegetarian, by the way. Funny for a steakhouse, I know.",
                "There are good mushroom steaks.",
            ),
            _session(
                2,
                "2026-04-20T21:00",
                "I quit the steakhouse. I drive a school bus now.",
                "What a change! Do you like the early start?",
                "I like being home by four.",
            ),
        ),
        ((r"school bus|bus driver",), ("mia",), ("leo",), ("vegetarian",), (r"\bfour\b|\b4\b",)),
        (("steakhouse|line cook", r"\bbus\b"),),
        ("baking", "mushroom"),
    ),
    Chat(
        "Carmen",
        (
            _session(
                1,
                "2026-02-03T12:00",
                "I'm learning Italian because my husband's family is from Bari.",
                "Wonderful! Films without subtitles help a lot.",
                "We fly there on the 10th of July.",
                "I hope you get to try the focaccia.",
            ),
            _session(
                2,
                "2026-05-15T12:30",
                "Our flight to Bari got moved. We're going on August 2nd now.",
                "August will be hot. Anything else planned?",
                "We'll stay with his aunt Rosaria.",
            ),
        ),
        (("italian",), ("bari",), (r"august 2|2(?:nd)?(?: of)? august|2026-08-02",), ("rosaria|aunt",)),
        (("july", "august|2026-08"),),
        ("focaccia", "subtitles|films"),
    ),
    Chat(
        "Dev",
        (
            _session(
                1,
                "2026-03-09T22:40",
                "my bike got stolen last night outside the library. i had it for nine years",
                "I'm sorry. Did you report it to the police?",
                "yes. i'm so angry, it was a present from my dad",
            ),
            _session(
                2,
                "2026-03-21T17:05",
                "they found it!! the police called me this morning",
                "That's fantastic news. Is it damaged?",
                "just a flat tire. i'm getting a better lock",
                "A U-lock is hard to cut.",
            ),
        ),
        ((r"\bbike\b|bicycle", "found|recovered|got .*back"), (r"\bdad\b|father",)),
        (),
        ("u-lock",),
    ),
    Chat(
        "Elena",
        (
            _session(
                1,
                "2026-01-30T09:20",
                "Can you help me with a training plan? I want to run a 10K in May.",
                "Of course! How often do you run now?",
                "Three times a week. I have asthma, so nothing too hard at first.",
                "Then start with intervals of walking. A yoga class could help too.",
            ),
            _session(
                2,
                "2026-04-02T09:45",
                "Change of plan, I'm doing the half marathon in October instead of the 10K.",
                "That's ambitious! How many runs a week will you do?",
                "Four from now on.",
            ),
        ),
        (("half[- ]marathon",), ("october",), ("asthma",), (r"\bfour\b|\b4\b",)),
        (("10k", "half[- ]marathon"), ("three times|3 times", r"\bfour\b|\b4\b")),
        ("yoga",),
    ),
    Chat(
        "Frank",
        (
            _session(
                1,
                "2026-02-14T10:10",
                "I'm retired, I was a pilot for thirty years. What do people do all day?",
                "Many take up gardening or golf. What do you enjoy?",
                "Woodwork. I'm building a dollhouse for my granddaughter Ivy.",
            ),
            _session(
                2,
                "2026-05-01T11:00",
                "The dollhouse is finished! Ivy cried when she saw it.",
                "How lovely! What will you build next?",
                "A canoe, if my wife Helen lets me have the garage.",
            ),
        ),
        (
            ("pilot",),
            ("retired|former",),
            ("doll'?s? ?house", "finish|complet|built"),
            ("canoe",),
            ("helen",),
        ),
        (("building a doll'?s? ?house", "finish|complet"),),
        ("golf", "gardening"),
    ),
    Chat(
        "Grace",
        (
            _session(
                1,
                "2026-03-18T19:00",
                "I'm allergic to peanuts. What can I cook for four people tonight?",
                "A lemon chicken tray bake would be quick.",
                "Good idea. My roommate Priya hates fish, so not that anyway.",
            ),
            _session(
                2,
                "2026-07-04T18:20",
                "Priya moved out, I live alone now.",
                "How is that for you?",
                "Quiet. I'm thinking of getting a cat to keep me company.",
                "An older cat from a shelter might be ideal.",
            ),
        ),
        (("peanut",), ("alone|moved out",), (r"\bcat\b",)),
        (("has a roommate|lives with", "moved out|alone"),),
        ("shelter", "chicken|lemon"),
    ),
    Chat(
        "Hiro",
        (
            _session(
                1,
                "2026-01-05T07:30",
                "I get up at 5 every day to write before work. I'm working on a novel about my grandmother.",
                "That takes discipline. What is your job?",
                "I'm a dentist.",
                "You could set a novel in a dental practice one day.",
            ),
            _session(
                2,
                "2026-06-22T20:30",
                "The novel has a publisher! Kestrel Press. It comes out next spring.",
                "Congratulations! Do you still write at 5?",
                "No, I write at night now, we have a baby.",
            ),
        ),
        (("novel",), ("kestrel",), ("dentist",), ("night",), ("baby|child",)),
        ((r"(?:at |up at )5|five|5 ?a\.?m\.?", "night"),),
        ("dental practice",),
    ),
    Chat(
        "Ivana",
        (
            _session(
                1,
                "2026-04-11T15:15",
                "I just bought a used Volvo. It's the first car I've ever owned!",
                "Congratulations! Volvos are known for their safety. What will you use it for?",
                "Driving to my mom's on Sundays. She lives in Split.",
            ),
            _session(
                2,
                "2026-09-03T16:00",
                "I sold the Volvo, it kept breaking down.",
                "What a pity. How do you visit your mother now?",
                "By bus. It's cheaper, and I can read.",
                "An audiobook would work too.",
            ),
        ),
        (("volvo", "sold|sell"), ("split",), (r"\bbus\b",)),
        ((r"(?:has|owns|drives|uses)\b.*volvo", "sold|sell"),),
        ("safety", "audiobook"),
    ),
    Chat(
        "Jamal",
        (
            _session(
                1,
                "2026-02-25T13:40",
                "I teach math at a middle school and honestly I'm burned out.",
                "I'm sorry. Could you take a sabbatical?",
                "No money for that. I'd love to open a record store one day.",
            ),
            _session(
                2,
                "2026-08-16T14:10",
                "I did it. I left teaching and I'm opening the record store in September!",
                "How exciting! What is it called?",
                "Side B. My brother Malik is my partner in it.",
                "You could sell coffee there too.",
            ),
        ),
        (("record (?:store|shop)",), ("september",), ("side b",), ("malik|brother",)),
        (("teach(?:es|er|ing)?", "left|record (?:store|shop)"),),
        ("sabbatical", "coffee"),
    ),
    Chat(
        "Klara",
        (
            _session(
                1,
                "2026-05-20T20:20",
                "My boyfriend Jonas and I are looking for a flat in Hamburg, two rooms at least.",
                "What is your budget?",
                "1,200 euros. And I need a balcony, I grow chili peppers.",
                "Altona is a popular neighbourhood.",
            ),
            _session(
                2,
                "2026-07-29T20:00",
                "We found one! Third floor, 1,150 euros, with a balcony. We move in on September 1st.",
                "Congratulations! Has Jonas started packing?",
                "Jonas is my fiancé now, actually!",
            ),
        ),
        (
            (r"1[,.]?150",),
            ("september",),
            ("jonas", r"fianc|engaged|marr"),
            ("chil[il]",),
        ),
        ((r"looking for (?:a|an)\b", "found"), ("boyfriend", "fianc|engaged")),
        ("altona",),
    ),
    Chat(
        "Liam",
        (
            _session(
                1,
                "2026-01-19T18:05",
                "I've played the drums in a band called The Wet Socks since high school.",
                "Great name! Do you play gigs?",
                "Every other Friday at O'Dell's.",
                "Earplugs are worth it for a drummer.",
            ),
            _session(
                2,
                "2026-06-30T18:45",
                "The band broke up last month. I'm pretty sad about it.",
                "I'm sorry, that must hurt. Will you keep playing?",
                "I'm giving drum lessons to kids now. Six students so far.",
            ),
        ),
        (("drum",), ("wet socks|band", "broke|break|split|disband"), ("lessons|teach",), ("six|6",)),
        (("every other friday|o'dell'?s", "broke|played"),),
        ("earplugs",),
    ),
    Chat(
        "Meera",
        (
            _session(
                1,
                "2026-03-27T11:25",
                "I'm pregnant! Due on October 14th. Only my mother knows.",
                "Congratulations! How do you feel?",
                "Sick every morning, but happy.",
                "Ginger helps some people with nausea.",
            ),
            _session(
                2,
                "2026-10-20T10:00",
                "She's here! Born on the 11th, we named her Tara.",
                "Congratulations! How are you both?",
                "Tired. My mother is staying with us until December.",
            ),
        ),
        (("tara",), (r"11(?:th)?\b",), ("mother|mom", "december")),
        (("is pregnant|due (?:on|date)", "born|birth|tara"),),
        ("ginger",),
    ),
    Chat(
        "Niko",
        (
            _session(
                1,
                "2026-02-08T16:30",
                "What laptop should I get? I study architecture, so it needs a good graphics card.",
                "Something with 32 GB of memory would be wise. What is your budget?",
                "1500 dollars max. I hate Macs, just so you know.",
            ),
            _session(
                2,
                "2026-05-24T16:50",
                "I got a ThinkPad in the end. And I changed my major to landscape design.",
                "What made you change?",
                "I'd rather be outdoors than in an office all my life.",
                "National parks hire designers as well.",
            ),
        ),
        (("thinkpad",), (r"\bmacs?\b",), ("landscape",), ("outdoors|outside",)),
        (("architecture", "landscape"),),
        ("32 ?gb", "national park"),
    ),
    Chat(
        "Olga",
        (
            _session(
                1,
                "2026-04-06T21:30",
                "I can't sleep. My divorce is next Thursday and I keep thinking about the house.",
                "I'm sorry. Would a warm bath help?",
                "Maybe. I take melatonin, but it does nothing. My friend Dana calls me every night, that helps.",
            ),
            _session(
                2,
                "2026-06-12T20:15",
                "I sleep like a baby these days, no melatonin.",
                "I'm glad! What changed?",
                "The divorce is done and I kept the house.",
            ),
        ),
        (
            ("divorce",),
            ("house", r"\b(?:kept|keeps|got)\b"),
            ("dana",),
            ("sleep.*(?:like a baby|well|better|without|no melatonin)",),
        ),
        (("takes melatonin|cannot sleep", "sleeps"),),
        (r"\bbath\b",),
    ),
    Chat(
        "Pedro",
        (
            _session(
                1,
                "2026-01-22T17:00",
                "I go to the gym on Mondays and Wednesdays, and I'd like to lose ten kilos by summer.",
                "A good goal. How much do you weigh now?",
                "94 kilos. My knee is bad, so no running.",
                "Swimming is easy on the knees.",
            ),
            _session(
                2,
                "2026-05-28T17:20",
                "I'm down to 86! And I go on Tuesdays and Fridays now, since they changed my shifts.",
                "Well done! How is the knee?",
                "Still bad. I see a specialist on June 9th.",
            ),
        ),
        ((r"\b86\b",), ("tuesday", "friday"), ("knee",), (r"june 9|9(?:th)?(?: of)? june|2026-06-09",)),
        (("monday|mondays|wednesday|wednesdays", "tuesday"), ("94", "86")),
        ("swimming|swims",),
    ),
    Chat(
        "Quinn",
        (
            _session(
                1,
                "2026-03-13T14:14",
                "Hi, I'm Quinn, I'm 29 and I do tattoos for a living. I only do black ink.",
                "Nice to meet you! What's the capital of Peru, if we're making small talk?",
                "Lima, easy. I lived there for a year.",
                "Then you must have eaten a lot of ceviche.",
            ),
            _session(
                2,
                "2026-07-17T14:30",
                "I work in color now. My boss made me try and I love it.",
                "A new world! Any favorite?",
                "Dark green. And I turned 30 on Tuesday.",
            ),
        ),
        (("tattoo",), ("lima|peru",), ("colou?r",), (r"\b30\b|thirty",), ("green",)),
        (("only .*black", "colou?r"), ("29", r"\b30\b|thirty")),
        ("ceviche",),
    ),
    Chat(
        "Rosa",
        (
            _session(
                1,
                "2026-02-19T19:19",
                "I'm reading Middlemarch with my book club. We meet on the first Sunday of the month.",
                "A classic. How do you like it?",
                "It's slow but I love Dorothea. I can't stand audiobooks, I need paper.",
                "Perhaps try Persuasion next.",
            ),
            _session(
                2,
                "2026-05-03T19:00",
                "Finished Middlemarch! We're on Beloved now.",
                "Toni Morrison, a powerful choice. Do you still meet on Sundays?",
                "Saturdays now. Sundays I see my dad in the nursing home.",
            ),
        ),
        (("middlemarch", r"finish|complet|read\b"), ("beloved",), ("saturday",), (r"\bdad\b|father", "nursing home")),
        (("first sunday", "saturday"), ("reading middlemarch", "finish|complet")),
        ("persuasion",),
    ),
    Chat(
        "Stefan",
        (
            _session(
                1,
                "2026-01-27T12:50",
                "I'm a nurse at St. Mary's, in the emergency room. Night shifts, mostly.",
                "That is demanding work. How do you relax?",
                "I fish. I've got a little cabin by the lake, my happiest place.",
            ),
            _session(
                2,
                "2026-04-14T13:15",
                "I'm not on nights any more, they moved me to pediatrics.",
                "Do you like working with children?",
                "Love it. Much better than the ER. But my cabin burned down in March. I'm still heartbroken.",
                "Insurance may cover rebuilding it.",
            ),
        ),
        ((r"nurse|st\.? mary",), ("pa?ediatric",), ("fish",), ("cabin", "burn|fire")),
        (
            ("emergency room|er", "pa?ediatric|better"),
            ("night shifts", "pa?ediatric"),
            ("has .*cabin", "burn|fire"),
        ),
        ("insurance",),
    ),
    Chat(
        "Tess",
        (
            _session(
                1,
                "2026-03-31T10:35",
                "Remind me what I'm like: I hate phone calls and I always answer texts late.",
                "Got it. My guess: Tess is an introvert?",
                "No, not at all! I love parties. I just don't like talking without seeing a face.",
            ),
            _session(
                2,
                "2026-06-19T10:55",
                "I started a podcast with my cousin Bea. It's about bad movies.",
                "Fun! How often does it come out?",
                "Weekly. It'll be twice a week from August.",
                "You could interview a director some day.",
            ),
        ),
        (("phone|calls",), ("part(?:y|ies)",), ("podcast",), (r"bea\b|cousin",), ("twice a week|two .*week|twice weekly",)),
        (("weekly|once a week|every week", "twice|august"),),
        ("is an introvert", "director"),
    ),
    Chat(
        "Umar",
        (
            _session(
                1,
                "2026-02-01T09:00",
                "We're getting a puppy next week, a beagle. The kids want to call him Waffles.",
                "How sweet! Have you thought about a crate?",
                "We have one. I had a beagle as a boy, he was called Captain.",
            ),
            _session(
                2,
                "2026-03-15T09:30",
                "The puppy turned out to be a girl, so now she's called Maple.",
                "A lovely name! Is she house-trained?",
                "Nearly. She's eaten two of my shoes.",
                "Frozen carrots are good for teething.",
            ),
        ),
        (("maple",), ("beagle",), ("captain",)),
        (("waffles", "maple|wanted"),),
        ("carrots?", "teething"),
    ),
    Chat(
        "Vera",
        (
            _session(
                1,
                "2026-05-09T17:45",
                "I'm saving for a trip to Japan, I have 2,000 dollars so far.",
                "Nice! Kyoto is beautiful in autumn. When do you want to go?",
                "In November, with my best friend Lucy. I don't eat raw fish, is that a problem?",
                "Not at all, there's ramen and tempura.",
            ),
            _session(
                2,
                "2026-08-22T18:00",
                "Lucy broke her leg, so no Japan this year. We'll go next April.",
                "Poor Lucy! How are your savings?",
                "3,400 by now!",
            ),
        ),
        (("japan",), ("april",), ("lucy",), (r"3[,.]?400",), ("fish",)),
        (("november", "april"), (r"2[,.]?000", r"3[,.]?400")),
        ("kyoto", "ramen|tempura"),
    ),
)
