"""Words that drafts of profiles are drawn from."""

from __future__ import annotations

from dataclasses import dataclass


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


CITIES = _split(
    "Porto, Portugal|Ghent, Belgium|Leeds, England|Cork, Ireland|Aarhus, Denmark|Turku, Finland|Bergen, Norway|"
    "Graz, Austria|Leipzig, Germany|Utrecht, Netherlands|Nantes, France|Bologna, Italy|Valencia, Spain|"
    "Krakow, Poland|Brno, Czechia|Ljubljana, Slovenia|Thessaloniki, Greece|Izmir, Turkey|Haifa, Israel|Amman, Jordan|"
    "Alexandria, Egypt|Rabat, Morocco|Accra, Ghana|Ibadan, Nigeria|Nakuru, Kenya|Kigali, Rwanda|Durban, South Africa|"
    "Pune, India|Kochi, India|Chittagong, Bangladesh|Kandy, Sri Lanka|Chiang Mai, Thailand|Da Nang, Vietnam|"
    "Cebu, Philippines|Bandung, Indonesia|Penang, Malaysia|Taichung, Taiwan|Daegu, South Korea|Sapporo, Japan|"
    "Chengdu, China|Adelaide, Australia|Dunedin, New Zealand|Halifax, Canada|Calgary, Canada|Portland, Oregon|"
    "Tucson, Arizona|Madison, Wisconsin|Savannah, Georgia|Columbus, Ohio|Boulder, Colorado|Puebla, Mexico|"
    "Medellin, Colombia|Cuenca, Ecuador|Arequipa, Peru|Valparaiso, Chile|Rosario, Argentina|Curitiba, Brazil|"
    "Montevideo, Uruguay"
)

DEGREES = ("high school diploma", "vocational certificate", "bachelor's degree", "master's degree", "doctorate")
"""From the lowest to the highest; the position is the level that `Job` asks for."""

YOUNGEST = (18, 20, 22, 24, 28)
"""Age from which a degree is had."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of an industry.

    Attributes:
        title: What it is called.
        level: Position in `DEGREES` that it takes.
        least: Monthly income of a beginner.
        most: Monthly income after many years.
    """

    title: str
    level: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Industry:
    """Where people work.

    Attributes:
        name: In words.
        majors: What they have studied.
        employers: Second halves of the names of employers.
        jobs: From the humblest to the highest.
    """

    name: str
    majors: tuple[str, ...]
    employers: tuple[str, ...]
    jobs: tuple[Job, ...]


def _industry(name: str, majors: str, employers: str, *jobs: tuple[str, int, int, int]) -> Industry:
    return Industry(name, _split(majors), _split(employers), tuple(Job(*job) for job in jobs))


INDUSTRIES = (
    _industry(
        "health care", "nursing|medicine|pharmacy|public health|physiotherapy", "Clinic|Medical Centre|Hospital|Health",
        ("care assistant", 0, 1_700, 2_600), ("paramedic", 1, 2_200, 3_600), ("nurse", 2, 2_500, 4_600),
        ("pharmacist", 3, 3_600, 6_400), ("physician", 4, 6_000, 14_000),
    ),
    _industry(
        "education", "education|linguistics|history|mathematics|child development", "School|College|Learning|Academy",
        ("school bus driver", 0, 1_600, 2_400), ("nursery assistant", 1, 1_800, 2_700),
        ("primary school teacher", 2, 2_600, 4_500), ("school counsellor", 3, 3_000, 5_200),
        ("university lecturer", 4, 3_800, 8_000),
    ),
    _industry(
        "software", "computer science|information systems|data science|software engineering", "Systems|Software|Labs|Data",
        ("support agent", 0, 1_900, 3_200), ("network technician", 1, 2_400, 4_200), ("software developer", 2, 3_500, 8_500),
        ("data scientist", 3, 4_200, 9_500), ("research scientist", 4, 5_500, 13_000),
    ),
    _industry(
        "construction", "civil engineering|architecture|carpentry|surveying", "Construction|Builders|Works|Engineering",
        ("site labourer", 0, 1_700, 2_800), ("electrician", 1, 2_200, 4_600), ("site manager", 2, 3_200, 6_800),
        ("structural engineer", 3, 3_800, 7_800),
    ),
    _industry(
        "hospitality", "hotel management|culinary arts|tourism|food science", "Hotel|Kitchen|Catering|Inn",
        ("waiter", 0, 1_400, 2_400), ("cook", 1, 1_700, 3_400), ("hotel manager", 2, 2_800, 6_000),
        ("food safety consultant", 3, 3_200, 6_000),
    ),
    _industry(
        "finance", "economics|accounting|finance|actuarial science", "Bank|Capital|Insurance|Trust",
        ("bank clerk", 0, 1_900, 3_000), ("bookkeeper", 1, 2_100, 3_600), ("accountant", 2, 2_900, 6_500),
        ("risk analyst", 3, 4_000, 9_800), ("economist", 4, 5_000, 11_500),
    ),
    _industry(
        "media", "journalism|film studies|graphic design|communication", "Press|Studio|Media|Pictures",
        ("production runner", 0, 1_400, 2_300), ("sound technician", 1, 1_900, 3_600), ("journalist", 2, 2_200, 5_200),
        ("documentary editor", 3, 2_600, 6_200),
    ),
    _industry(
        "transport", "logistics|mechanical engineering|supply chain management", "Transport|Freight|Logistics|Rail",
        ("delivery driver", 0, 1_600, 2_700), ("train driver", 1, 2_400, 4_400), ("logistics planner", 2, 2_700, 5_600),
        ("operations director", 3, 4_800, 11_000),
    ),
    _industry(
        "agriculture", "agronomy|horticulture|veterinary science|environmental science", "Farms|Orchards|Nurseries|Growers",
        ("farm worker", 0, 1_300, 2_200), ("gardener", 1, 1_600, 2_900), ("agronomist", 2, 2_500, 5_200),
        ("soil scientist", 3, 3_000, 6_000), ("veterinarian", 4, 3_800, 8_800),
    ),
    _industry(
        "retail", "business administration|marketing|fashion design", "Stores|Market|Trading|Supply",
        ("shop assistant", 0, 1_400, 2_300), ("visual merchandiser", 1, 1_700, 3_000), ("buyer", 2, 2_500, 5_400),
        ("brand strategist", 3, 3_400, 7_800),
    ),
    _industry(
        "public service", "law|political science|social work|urban planning", "Council|Agency|Service|Authority",
        ("postal worker", 0, 1_600, 2_600), ("firefighter", 1, 2_200, 4_000), ("social worker", 2, 2_400, 4_400),
        ("city planner", 3, 3_200, 6_400), ("policy researcher", 4, 4_000, 8_200),
    ),
    _industry(
        "energy", "electrical engineering|physics|geology|environmental engineering", "Energy|Power|Solar|Grid",
        ("meter reader", 0, 1_600, 2_500), ("wind turbine technician", 1, 2_500, 4_800), ("grid planner", 2, 3_200, 6_600),
        ("energy engineer", 3, 3_900, 8_400), ("reactor physicist", 4, 5_200, 11_000),
    ),
)  # fmt: skip

EMPLOYER_NAMES = _split(
    "Alder|Beacon|Brightwater|Cedar|Compass|Copperfield|Crestline|Eastgate|Fairhaven|Fernhill|Foxglove|Greenway|"
    "Harbour|Hawthorn|Juniper|Kestrel|Lakeside|Lantern|Larkspur|Maple|Meridian|Millbrook|Northstar|Oakfield|Orchard|"
    "Pinewood|Quayside|Redwood|Riverbend|Rowan|Sandstone|Silverleaf|Southbank|Summit|Thornbury|Tidewater|Valley|"
    "Westbrook|Willow|Windmill"
)

TRAITS = {
    "E": ("outgoing", "talkative", "energetic", "sociable"),
    "I": ("reserved", "reflective", "a good listener", "self-contained"),
    "S": ("practical", "observant", "down-to-earth", "attentive to detail"),
    "N": ("imaginative", "curious", "inventive", "open to new ideas"),
    "T": ("analytical", "fair-minded", "direct", "level-headed"),
    "F": ("warm", "empathetic", "considerate", "loyal"),
    "J": ("organised", "dependable", "punctual", "decisive"),
    "P": ("easy-going", "spontaneous", "adaptable", "playful"),
}
"""Traits by letter of the personality type."""

MBTI_SHARES = (("E", "I", 0.50), ("S", "N", 0.65), ("T", "F", 0.45), ("J", "P", 0.55))
"""Each pair of letters and how common the first is."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A kind of life goal; ``{number}`` in the target stands for one of the numbers."""

    kind: str
    statements: tuple[str, ...]
    motivations: tuple[str, ...]
    target: str
    numbers: tuple[int, ...]


GOALS = (
    Goal(
        "social mobility",
        ("Give the family a footing that no earlier generation had.", "Rise into the circle of people who decide things."),
        ("Grew up counting every coin.", "Saw the parents turned away for lack of a diploma."),
        "Own a home outright and pay for the studies of {number} younger relatives.",
        (2, 3, 4, 5),
    ),
    Goal(
        "achievement",
        ("Become one of the most respected names in the field.", "Lead a team whose work is copied everywhere."),
        ("Was told as a teenager to aim lower.", "Cannot leave a thing half done."),
        "Complete {number} projects that win a national award.",
        (3, 4, 5, 6, 8),
    ),
    Goal(
        "financial freedom",
        ("Live from savings and choose work freely.", "Stop working for money well before old age."),
        ("Lost a job overnight and never forgot it.", "Watched the parents work until they fell ill."),
        "Build up {number:,} in investments within twenty years.",
        (400_000, 600_000, 750_000, 900_000, 1_200_000),
    ),
    Goal(
        "technology idealism",
        ("Build tools that make daily chores easier for everyone.", "Bring useful technology to people who are left out."),
        ("Repaired old radios with a grandparent.", "Saw how one small program saved a clinic hours a day."),
        "Put a free tool into the hands of {number:,} people.",
        (10_000, 50_000, 100_000, 500_000),
    ),
    Goal(
        "cultural heritage",
        ("Keep a disappearing craft of the region alive.", "Record the songs and stories of the old neighbourhood."),
        ("Learned the craft from the last person in town who knew it.", "Found a box of letters in the attic."),
        "Teach {number} apprentices and publish one illustrated book.",
        (20, 40, 60, 100),
    ),
    Goal(
        "humanitarian care",
        ("Set up lasting help for families in hardship.", "Bring basic care to villages without a doctor."),
        ("Was helped by strangers after a flood.", "Volunteered once and could not stop."),
        "Reach {number:,} people with steady support.",
        (2_000, 5_000, 10_000, 25_000, 50_000),
    ),
    Goal(
        "philosophical inquiry",
        ("Work out what a good life is and put it into words.", "Understand how people find calm in uncertain times."),
        ("Lost a close friend early and kept asking why.", "Reads every evening and argues with the margins."),
        "Write {number} essays and lead a monthly discussion circle for ten years.",
        (24, 50, 75, 100),
    ),
)

PHYSICAL_CONDITIONS = (
    "asthma", "high blood pressure", "lower back pain", "migraine", "type 2 diabetes", "a food allergy", "knee arthritis",
    "an underactive thyroid", "eczema",
)  # fmt: skip
MENTAL_CONDITIONS = (
    "mild anxiety", "recurring insomnia", "seasonal low mood", "work-related burnout", "panic attacks", "depression",
)  # fmt: skip

RELATIONSHIPS = {
    "friend": (
        "has been a close friend since their school days",
        "goes on long walks with {name} and talks about everything",
        "is the first person {name} calls with good news",
    ),
    "colleague": (
        "shares an office with {name} and often has lunch with {name}",
        "taught {name} the ropes in the first weeks",
        "works with {name} on most projects",
    ),
    "classmate": (
        "studied together with {name} and still compares notes",
        "sat next to {name} in class for years",
        "prepared for every exam with {name}",
    ),
    "neighbour": (
        "lives next door to {name} and looks after the plants",
        "borrows tools from {name} and returns them with cake",
        "meets {name} on the stairs most mornings",
    ),
    "online friend": (
        "met {name} in a hobby forum and writes every week",
        "plays online with {name} on Friday evenings",
        "runs a small chat group together with {name}",
    ),
}
"""Kinds of relationships and how somebody stands to the person called ``{name}``."""

CATEGORIES = ("food", "drinks", "books", "music", "films", "games", "sports", "clothing", "pets", "travel")
"""Kinds of preferences."""
