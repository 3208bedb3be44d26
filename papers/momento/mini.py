"""``momento-mini``: an invented restaurant service and tasks in it that need memory, made by program from a seed."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from papers.momento.policies import PROVIDERS, Row, amount, order_total
from papers.momento.tasks import ActionNode, ExpectedInformation, MomentoTask, PastMessage, PastSession, TaskSet
from papers.momento.world import BASIC, Catalogue, state_hashes

CITIES = {"Lindau": ("Norvia", 47.5, 9.7), "Port Ellery": ("Norvia", 48.1, 11.2), "Sarnath": ("Velia", 44.3, 12.9)}
_CUISINES = {
    "italian": ("Tagliatelle al Limone", "Gnocchi alla Salvia", "Ribollita", "Panna Cotta", "Saltimbocca", "Arancini"),
    "thai": ("Massaman Curry", "Pad See Ew", "Tom Kha Soup", "Mango Sticky Rice", "Larb Salad", "Green Papaya Salad"),
    "mexican": ("Mole Poblano", "Fish Tacos", "Pozole", "Churros", "Tamales", "Elote"),
    "indian": ("Dal Makhani", "Lamb Vindaloo", "Palak Paneer", "Gulab Jamun", "Masala Dosa", "Chana Chaat"),
    "greek": ("Moussaka", "Spanakopita", "Grilled Octopus", "Baklava", "Gemista", "Tirokafteri"),
}


def _words(text: str) -> list[str]:
    return text.split()


_KINDS = ("main", "main", "soup or side", "dessert", "main", "starter")
_FIRST = _words("Copper Silver Olive Harbour Lantern Willow Saffron Juniper Marble Cedar Amber Ivy")
_SECOND = _words("Table Kitchen Courtyard Spoon House Corner Garden Hearth Terrace Room Oven Barrel")
_AMENITIES = _words("wifi parking outdoor_seating vegan_options live_music family_friendly halal pet_friendly")
_PEOPLE = (
    ("Mara", "Quist", "female"),
    ("Oren", "Tadic", "male"),
    ("Ines", "Volkov", "female"),
    ("Tobias", "Ferrant", "male"),
    ("Yuki", "Almeida", "other"),
    ("Selma", "Okoro", "female"),
    ("Bruno", "Haldane", "male"),
    ("Petra", "Lindqvist", "female"),
)
RESTAURANTS = 30


def new_id(*parts: object) -> str:
    """An id that is the same each time."""
    return str(uuid5(NAMESPACE_URL, "momento-mini " + " ".join(map(str, parts))))


@cache
def mini_catalogue(seed: int = 0) -> Catalogue:
    """The invented world: people, restaurants with two cuisines' dishes at most, and their menus."""
    draw = random.Random(f"momento-mini catalogue {seed}")
    names = draw.sample([f"{first} {second}" for first in _FIRST for second in _SECOND], RESTAURANTS)
    restaurants: list[dict[str, Any]] = []
    dishes: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        city = list(CITIES)[number % len(CITIES)]
        country, lat, lon = CITIES[city]
        cuisine = list(_CUISINES)[number % len(_CUISINES)]
        closing = draw.choice(("22:00", "22:30", "23:00"))
        hours = dict.fromkeys(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday"), f"11:00-{closing}")
        place = new_id("restaurant", seed, name)
        restaurants.append(
            {
                "id": place,
                "name": name,
                "description": f"{cuisine.title()} cooking in {city}",
                "address": f"{draw.randint(1, 99)} {draw.choice(_SECOND)} Street, {city}",
                "city": city,
                "country": country,
                "lat": round(lat + draw.uniform(-0.05, 0.05), 5),
                "lon": round(lon + draw.uniform(-0.05, 0.05), 5),
                "cuisines": [cuisine],
                "price_range_lower": 6,
                "price_range_upper": draw.choice((22, 28, 34)),
                "opening_hours": hours | {"sunday": "12:00-21:00"},
                "capacity": draw.randint(20, 60),
                "amenities": draw.sample(_AMENITIES, 3),
                "image_url": [],
            }
        )
        for dish, kind in zip(_CUISINES[cuisine], _KINDS, strict=True):
            dishes.append(
                {
                    "id": new_id("dish", seed, name, dish),
                    "restaurant_id": place,
                    "name": dish,
                    "description": f"{dish} as {name} makes it",
                    "categories": [kind],
                    "cuisines": [cuisine],
                    "price": draw.randint(24, 120) / 4,
                    "image_url": [],
                }
            )
    users = []
    payments = []
    for first, last, gender in _PEOPLE:
        user = f"{first}_{last}".lower()
        city = draw.choice(list(CITIES))
        users.append(
            {
                "id": user,
                "first_name": first,
                "last_name": last,
                "email": f"{user}@example.org",
                "gender": gender,
                "address1": f"{draw.randint(1, 99)} {draw.choice(_FIRST)} Lane",
                "address2": "",
                "city": city,
                "state": city,
                "country": CITIES[city][0],
                "zip": f"{draw.randint(10000, 99999)}",
                "phone": None,
            }
        )
        payments.append({"id": new_id("payment", user), "user_id": user, "type": "credit_card", "details": {"brand": "x"}})
    return Catalogue(users, payments, restaurants, dishes)


FORMS: dict[str, str] = {
    "usual": "My usual at {place} is {dish}, {count} of it.",
    "provider": "Whenever something is delivered to me, let {provider} bring it.",
    "party": "When I book a table for all of us, count {count} people.",
    "time": "I like to sit down at {time}, whatever was booked.",
    "occasion": "We had {occasion} at {place}, and it was perfect.",
    "tier": "I have settled on a {tier} membership, and it shall end on {end}.",
    "favourite": "{who} loves the {dish} at {place} most.",
}
"""What users say in past sessions that has to be remembered; of what is said twice the later one holds."""

OPENINGS: dict[str, str] = {
    "usual": "Please order my usual from {place}, for pickup.",
    "provider": "Please have one {dish} from {place} delivered to {address}, by the company that always comes to me.",
    "party": "Please book a table for all of us at {place} on {date} at {time}, for 90 minutes.",
    "occasion": "Please book a table for two where we had {occasion}, on {date} at 19:00, for 60 minutes.",
    "tier": "Please apply for the membership that I settled on; it begins today.",
    "time": "Please move my table at {place} to the time at which I like to sit down.",
    "favourite": "What does the dish cost that {who} loves most at {place}?",
}
"""What a user asks for, by what has to be remembered for it."""

KINDS = (
    "usual",
    "usual corrected",
    "provider",
    "party",
    "party corrected",
    "occasion",
    "tier",
    "time corrected",
    "favourite",
)
"""Kinds of tasks; where something was corrected, an earlier session says otherwise."""

TASKS = 54
_PROVIDERS = ("swiftdrop", "foodfly", "quickdish", "mealdash", "carryeats")
_OCCASIONS = (
    "our wedding party",
    "my birthday",
    "the farewell dinner",
    "our first date",
    "the reunion",
    "my graduation meal",
)
_RELATIVES = ("My daughter", "My son", "My mother", "My brother", "My aunt", "My neighbour")
_TIMES = ("18:15", "18:45", "19:30", "20:15", "20:45")
_NOISE = (
    ("Do you have a table by the window at {place}?", "That depends on the evening; I can note the wish."),
    ("How late does {place} serve?", "The kitchen of {place} takes the last order shortly before it closes."),
    ("Is the {dish} at {place} spicy?", "Mildly, says the kitchen."),
    ("My colleague always lets {provider} bring her lunch.", "Good to know that it works for her."),
    ("The people next door booked a table for {count} people.", "That must have been a merry evening."),
    ("A friend of mine has a {tier} membership.", "It is a popular one."),
    ("Last week we sat down at {time}, which was too late for the children.", "I see."),
    ("A man at the next table ordered {count} of the {dish} at {place}.", "It is often ordered."),
    ("Somebody had {occasion} at {place} while we were there.", "It is often booked for such evenings."),
)


def form_pattern(form: str) -> re.Pattern[str]:
    """Finds a sentence of a form and what it is filled with."""
    parts = re.split(r"\{(\w+)\}", form)
    return re.compile("".join(f"(?P<{part}>.+?)" if number % 2 else re.escape(part) for number, part in enumerate(parts)))


class _Writer:
    """Writes the task of one number."""

    def __init__(self, number: int, seed: int, catalogue: Catalogue) -> None:
        self.number, self.seed = number, seed
        self.kind = KINDS[number % len(KINDS)]
        self.topic = self.kind.removesuffix(" corrected")
        self.draw = random.Random(f"momento-mini task {seed} {number}")
        self.today = date(2026, 3, 2) + timedelta(days=7 * (number % 9) + self.draw.randrange(5))  # Monday to Friday
        self.user = str(catalogue.users[number % len(catalogue.users)]["id"])
        self.address = str(catalogue.users[number % len(catalogue.users)]["address1"])
        self.catalogue = catalogue
        self.places = self.draw.sample(list(catalogue.restaurants), 6)
        self.used: set[str] = set()

    def dishes(self, place: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The menu of a restaurant."""
        return [dish for dish in self.catalogue.menu_items if dish["restaurant_id"] == place["id"]]

    def filling(self, place: Mapping[str, Any]) -> dict[str, str]:
        """Values for all places of forms."""
        draw = self.draw
        return {
            "place": place["name"],
            "dish": draw.choice(self.dishes(place))["name"],
            "count": str(draw.randint(2, 9)),
            "provider": draw.choice(_PROVIDERS),
            "time": draw.choice(_TIMES),
            "occasion": draw.choice(_OCCASIONS),
            "tier": draw.choice(("silver", "gold", "platinum")),
            "end": str(self.today + timedelta(days=draw.choice((182, 365, 730)))),
            "who": draw.choice(_RELATIVES),
            "date": str(self.today + timedelta(days=draw.randint(1, 4))),
            "address": self.address,
        }

    def others(self, true: Mapping[str, str]) -> dict[str, str]:
        """Values that all differ from the true ones, for the same place, occasion and person."""
        place = self.places[0]
        while True:
            other = self.filling(place) | {key: true[key] for key in ("place", "occasion", "who")}
            if all(other[key] != true[key] for key in ("dish", "count", "provider", "time", "tier", "end")):
                return other

    def write(self) -> MomentoTask:
        """The task, with the hashes of the state that its reference actions lead to."""
        place = self.places[0]
        true = self.filling(place)
        if self.topic == "occasion":
            true["date"] = str(self.today + timedelta(days=1))
        facts = [FORMS[self.topic].format(**true)]
        if self.kind.endswith("corrected"):
            facts.insert(0, FORMS[self.topic].format(**self.others(true)))
        seed_data = self.seed_rows(place, true)
        sessions, evidence = self.sessions(facts, true)
        nodes, information = self.expected(place, true)
        opening = OPENINGS[self.topic].format(**true)
        hashes: dict[str, Any] = {**state_hashes(self.state(nodes[-1], seed_data))}
        return MomentoTask(
            task_id=self.number,
            user_id=self.user,
            instruction=f"You are a customer of the restaurant service. You begin with: {opening} You expect the assistant "
            "to remember what you said in earlier talks, and do not say it again. When it asks you to confirm, confirm.",
            current_date=self.today,
            **hashes,
            action_dags=alternatives(nodes),
            expected_information=(information,),
            sessions=sessions,
            seed_data=seed_data,
            kind=self.kind,
            opening=opening,
            evidence=evidence,
        )

    def state(self, last: ActionNode, seed_data: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
        """The user's rows after the last of the reference actions, which alone changes them, as `World.state` has them."""
        given = last.arguments
        state: dict[str, list[Row]] = {"orders": [], "reservations": [], "order_items": []}
        state["memberships"] = [{"user_id": self.user, **BASIC}]
        table = ["user_id", "restaurant_id", "date", "time", "party_size", "duration_minutes", "status"]
        match last.tool:
            case "create_order":
                (item,) = given["items"]
                dish = next(one for one in self.catalogue.menu_items if one["id"] == item["menu_item_id"])
                provider = given.get("delivery_provider")
                delivery = PROVIDERS[provider]["delivery_price"] if provider else None
                total, _ = order_total([(dish["price"], item["quantity"])], "basic", delivery)
                order = {name: given[name] for name in ("user_id", "restaurant_id", "fulfillment")}
                order |= {"status": "created", "total_price": amount(total), "currency": "USD"}
                state["orders"] = [order | {"delivery_provider_name": provider}]
                state["order_items"] = [item | {"name": dish["name"], "price": amount(dish["price"])}]
            case "create_reservation":
                row = given | {"time": f"{given['time']}:00", "status": "confirmed"}
                state["reservations"] = [{name: row[name] for name in table}]
            case "update_reservation":
                (before,) = (row for row in seed_data["reservations"] if row["user_id"] == self.user)
                row = before | {"time": f"{given['time']}:00"}
                state["reservations"] = [{name: row[name] for name in table}]
            case "apply_membership":
                state["memberships"].append(given | {"status": "active"})
        return state

    def seed_rows(self, place: Mapping[str, Any], true: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
        """What is there before: a table that is to be moved, and others' tables."""
        if self.topic != "time":
            return {}
        row = {"restaurant_id": place["id"], "date": true["date"], "party_size": 2, "duration_minutes": 60}
        stamp = f"{self.today - timedelta(days=1)}T09:00:00+00:00"
        row["status"] = "confirmed"
        mine = {"id": self.reservation, "user_id": self.user, "time": "12:30", "created_at": stamp}
        other = next(str(user["id"]) for user in self.catalogue.users if user["id"] != self.user)
        his = {"id": new_id("his", self.seed, self.number), "user_id": other, "time": "13:00", "created_at": stamp}
        return {"reservations": [row | mine, row | his]}

    @property
    def reservation(self) -> str:
        """The table that is to be moved."""
        return new_id("mine", self.seed, self.number)

    def sessions(self, facts: Sequence[str], true: Mapping[str, str]) -> tuple[tuple[PastSession, ...], tuple[str, ...]]:
        """Past sessions, one a week: each fact in one of them, in order, the others about something else; and where."""
        draw, count = self.draw, 9
        chosen = sorted(draw.sample(range(count), len(facts)))
        sessions, evidence = [], []
        for place in range(count):
            started = datetime.combine(self.today - timedelta(days=7 * (count - place)), time(draw.randint(9, 20)), UTC)
            talk = [self.noise(true) for _ in range(2)]
            fact = None
            if place in chosen:
                fact = facts[chosen.index(place)]
                talk.insert(draw.randint(0, 2), (fact, "Thank you, I will keep that in mind."))
            else:
                talk.append(self.distraction(true))
            said = fact or talk[-1][0]
            texts = [text for pair in talk for text in pair]
            subjects = {pair[0].split()[-1].strip("?.") for pair in talk}
            name = new_id("session", self.seed, self.number, place)
            if fact is not None:
                evidence.append(turn_id(name, texts.index(fact) + 1))
            sessions.append(
                PastSession(
                    id=name,
                    user_id=self.user,
                    started_at=started,
                    ended_at=started + timedelta(minutes=10),
                    summary=f"The user talked about {' and '.join(sorted(subjects))}.",
                    extracted_facts={"said": said},
                    messages=tuple(
                        PastMessage(seq=seq, role="user" if seq % 2 else "assistant", content=text)
                        for seq, text in enumerate(texts, start=1)
                    ),
                )
            )
        return tuple(sessions), tuple(evidence)

    def noise(self, true: Mapping[str, str]) -> tuple[str, str]:
        """A question or remark that says nothing of what has to be remembered, perhaps about the same restaurant."""
        asked, reply = self.draw.choice(_NOISE)
        filled = self.filling(self.draw.choice(self.places))
        return asked.format(**filled), reply.format(**filled)

    def distraction(self, true: Mapping[str, str]) -> tuple[str, str]:
        """Something of the same form about another restaurant, occasion or person, or a remark."""
        if self.topic in ("usual", "occasion", "favourite"):
            other = self.filling(self.draw.choice(self.places[1:]))
            if other["occasion"] != true["occasion"] and other["occasion"] not in self.used:
                self.used.add(other["occasion"])
                return FORMS[self.topic].format(**other), "Noted."
        return self.noise(true)

    def expected(self, place: Mapping[str, Any], true: Mapping[str, str]) -> tuple[list[ActionNode], ExpectedInformation]:
        """The reference actions in order, and what the user has to be told."""
        dish = next(one for one in self.dishes(place) if one["name"] == true["dish"])
        price, count = float(dish["price"]), int(true["count"])
        look = ("search_restaurants", {"name": place["name"]})
        menu = ("list_restaurant_menu", {"restaurant_id": place["id"]})
        order = {"user_id": self.user, "restaurant_id": place["id"], "fulfillment": "pickup"}
        table = {"restaurant_id": place["id"], "user_id": self.user, "date": true["date"], "party_size": 2}
        match self.topic:
            case "usual":
                order["items"] = [{"menu_item_id": dish["id"], "quantity": count}]
                return _chain(look, menu, ("create_order", order)), _told("what the order costs", f"{price * count:.2f}")
            case "provider":
                order |= {"items": [{"menu_item_id": dish["id"], "quantity": 1}], "fulfillment": "delivery"}
                order |= {"delivery_provider": true["provider"], "delivery_address": self.address}
                total = price + PROVIDERS[true["provider"]]["delivery_price"]
                return _chain(look, menu, ("create_order", order)), _told("what the order costs", f"{total:.2f}")
            case "party":
                table |= {"time": true["time"], "party_size": count, "duration_minutes": 90}
                return _chain(look, ("create_reservation", table)), _told("for how many the table is", f"for {count} people")
            case "occasion":
                table |= {"time": "19:00", "duration_minutes": 60}
                return _chain(look, ("create_reservation", table)), _told("where the table is", place["name"])
            case "tier":
                member = {"user_id": self.user, "tier": true["tier"], "start_date": str(self.today), "end_date": true["end"]}
                status = ("get_membership_status", {"user_id": self.user})
                return _chain(status, ("apply_membership", member)), _told("which membership begins", true["tier"])
            case "time":
                mine = ("list_user_reservations", {"user_id": self.user})
                moved = {"reservation_id": self.reservation, "user_id": self.user, "time": true["time"]}
                return _chain(mine, ("update_reservation", moved)), _told("the new time", true["time"])
        return _chain(look, menu), _told("what the dish costs", f"{price:.2f}")


def turn_id(session: str, seq: int) -> str:
    """Id of a message as memory systems know it."""
    return f"{session}/{seq}"


def _told(description: str, answer: str) -> ExpectedInformation:
    return ExpectedInformation(description=description, reference_answer=answer)


def _chain(*calls: tuple[str, dict[str, Any]]) -> list[ActionNode]:
    return [
        ActionNode(id=f"n{number}", tool=tool, arguments=arguments, predecessors=(f"n{number - 1}",) if number else ())
        for number, (tool, arguments) in enumerate(calls)
    ]


def alternatives(nodes: Sequence[ActionNode]) -> tuple[tuple[ActionNode, ...], ...]:
    """The reference actions, or the same with another way to find restaurants and menus."""
    ways = [tuple(nodes)]
    if any(node.tool == "search_restaurants" for node in nodes):
        rest = [node for node in nodes if node.tool not in ("search_restaurants", "list_restaurant_menu")]
        by_sql = ActionNode(id="sql", tool="execute_sql")
        ways.append((by_sql, *(node.model_copy(update={"predecessors": ("sql",)}) for node in rest)))
    return tuple(ways)


@cache
def mini_tasks(seed: int = 0) -> TaskSet:
    """All tasks: the same for the same seed."""
    catalogue = mini_catalogue(seed)
    tasks = tuple(_Writer(number, seed, catalogue).write() for number in range(TASKS))
    text = "".join(task.model_dump_json() for task in tasks)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return TaskSet(f"momento-mini (seed {seed})", sha256, "Apache-2.0, made by program", tasks)
