"""``momento-mini``: an invented restaurant service and tasks in it that need memory, made by program from a seed."""

from __future__ import annotations

import random
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from eval.momento.world import Catalogue

CITIES = {"Lindau": ("Norvia", 47.5, 9.7), "Port Ellery": ("Norvia", 48.1, 11.2), "Sarnath": ("Velia", 44.3, 12.9)}
_CUISINES = {
    "italian": ("Tagliatelle al Limone", "Gnocchi alla Salvia", "Ribollita", "Panna Cotta", "Saltimbocca", "Arancini"),
    "thai": ("Massaman Curry", "Pad See Ew", "Tom Kha Soup", "Mango Sticky Rice", "Larb Salad", "Green Papaya Salad"),
    "mexican": ("Mole Poblano", "Fish Tacos", "Pozole", "Churros", "Tamales", "Elote"),
    "indian": ("Dal Makhani", "Lamb Vindaloo", "Palak Paneer", "Gulab Jamun", "Masala Dosa", "Chana Chaat"),
    "greek": ("Moussaka", "Spanakopita", "Grilled Octopus", "Baklava", "Gemista", "Tirokafteri"),
}
_KINDS = ("main", "main", "soup or side", "dessert", "main", "starter")
_FIRST = (
    "Copper",
    "Silver",
    "Olive",
    "Harbour",
    "Lantern",
    "Willow",
    "Saffron",
    "Juniper",
    "Marble",
    "Cedar",
    "Amber",
    "Ivy",
)
_SECOND = (
    "Table",
    "Kitchen",
    "Courtyard",
    "Spoon",
    "House",
    "Corner",
    "Garden",
    "Hearth",
    "Terrace",
    "Room",
    "Oven",
    "Barrel",
)
_AMENITIES = (
    "wifi",
    "parking",
    "outdoor_seating",
    "vegan_options",
    "live_music",
    "family_friendly",
    "halal",
    "pet_friendly",
)
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
