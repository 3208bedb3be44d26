"""What generated personas are combined of. Every entry is there once, and all are ours."""

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


OCCUPATIONS = _split(
    "night-shift nurse|primary school teacher|train driver|pastry chef|bicycle mechanic|landscape gardener|tax adviser|"
    "museum guide|software tester|dental hygienist|fishmonger|court interpreter|roofer|wedding photographer|bus driver|"
    "goat farmer|piano tuner|optician|air traffic controller|bookseller|furniture restorer|midwife|mail carrier|"
    "crane operator|speech therapist|sound engineer|insurance clerk|veterinary assistant|tram conductor|beekeeper|"
    "textile designer|game developer|hotel receptionist|physiotherapist|civil engineer|social worker|baker|notary clerk|"
    "swimming instructor|bank teller|chimney sweep|data analyst|florist|forest ranger|locksmith|paralegal|pharmacist|"
    "radio host|ship's cook|street musician|tailor|translator|watchmaker|wind turbine technician|yoga teacher|zookeeper|"
    "archivist|barber|call centre agent|carpenter|cheese maker|choir director|city planner|dietitian|electrician|"
    "emergency dispatcher|event organiser|factory supervisor|ferry captain|food inspector|glassblower|graphic designer|"
    "grocer|history teacher|janitor|journalist|kindergarten teacher|laboratory technician|librarian|logistics planner|"
    "market trader|mathematics tutor|metalworker|network administrator|office manager|orchestra violinist|paramedic|"
    "plumber|potter|prison officer|receptionist at a clinic|seamstress|security guard|stage technician|surveyor|"
    "taxi driver|tour guide|vintner|warehouse worker|web designer"
)

INTERESTS = _split(
    "restores old radios|sings in an amateur choir|grows tomatoes on the balcony|collects railway timetables|"
    "bakes sourdough bread|runs along the river before dawn|plays chess by mail|learns a new language every year|"
    "builds model ships|reads crime novels in one sitting|watches birds with a borrowed telescope|brews ginger beer|"
    "dances tango on Thursdays|paints small watercolours|repairs bicycles for the neighbours|keeps a diary of dreams|"
    "photographs doorways|solves crosswords in ink|plays the double bass|knits for every newborn around|"
    "hikes alone in the hills|volunteers at an animal shelter|writes letters to distant cousins|swims in cold lakes|"
    "collects recipes from elderly people|follows local football with passion|makes puppets out of scrap wood|"
    "plays board games that last a whole weekend|tends a shared garden|films short documentaries|studies the stars|"
    "rebuilds vintage computers|practises calligraphy|forages for mushrooms|coaches a youth volleyball team|"
    "bakes elaborate birthday cakes|reads poetry aloud|restores a wooden rowing boat|plays table tennis in the park|"
    "maps forgotten footpaths|collects vinyl records|sews historical costumes|tries a new soup every week|"
    "climbs at the indoor wall|makes ceramics|plays in a brass band|keeps bees on a roof|writes science fiction stories|"
    "goes to every film festival within reach|trains for a first triathlon|draws comic strips|cooks with spices from home|"
    "breeds canaries|organises flea markets|plays the accordion|explores abandoned factories|studies family trees|"
    "presses flowers|takes part in pub quizzes|carves wooden spoons|learns magic tricks|goes fishing at sunrise|"
    "translates old songs|rides long distances by bicycle|cultivates bonsai trees|plays badminton in a mixed team|"
    "writes restaurant reviews|builds kites|records the sounds of the city|teaches grandparents to use telephones|"
    "keeps tropical fish|plays improvised theatre|sketches strangers on trains|mends clothes for fun|"
    "hosts dinners for newcomers|skates on weekends|reads about ancient trade routes|makes jam for half the street|"
    "programs small robots|practises judo"
)

CIRCUMSTANCES = _split(
    "has just moved into a first flat of their own|shares a house with two siblings|is saving for a year abroad|"
    "looks after an ageing parent|is expecting a first child|recently went back to evening classes|"
    "is recovering from a knee operation|lives with a stubborn old cat|dreams of opening a small shop|"
    "has broken off a long engagement|is paying back a student loan|works two jobs for the time being|"
    "is getting used to life after a divorce|has adopted a rescue dog|is learning to live with diabetes|"
    "raises twins|has inherited a house that needs repairs|wants to change careers within two years|"
    "has stopped drinking coffee for good|is the first of the family to have a degree|"
    "is planning a wedding on a small budget|moved across the country for love|is trying to sleep better|"
    "sends money home every month|lost a close friend last year|is preparing for a driving test|"
    "has been elected to the residents' council|cannot stand noisy open-plan offices|is renovating a caravan|"
    "is getting over a burnout|commutes ninety minutes each way|has rediscovered an old friendship|"
    "is teaching a niece to read|is determined to buy no new clothes this year|has a long-distance relationship|"
    "is waiting for a residence permit|has switched to a four-day week|takes care of foster children|"
    "is saving up for hearing aids|wants to run for the town council|has become a vegetarian lately|"
    "is back in the home town after ten years|rents a room to exchange students|is writing a will for the first time|"
    "keeps postponing a visit to the dentist|is mending a quarrel with a brother|has won a small scholarship|"
    "is tired of moving every year|hopes to be promoted before summer|is learning to say no"
)

SENTENCES = (
    "{A} {occupation} in {place} who {interest} and {circumstance}.",
    "{A} {occupation} who {circumstance}, lives in {place} and {interest}.",
    "From {place}: {a} {occupation} who {interest} and {circumstance}.",
)
