"""Names of people, whose spelling tells the split, so that held-out people share no name with training people."""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Protocol

from deltamem.errors import DeltaMemError
from deltamem.sessions import Split


@dataclass(frozen=True, slots=True)
class Region:
    """Names that are common together."""

    female: tuple[str, ...]
    male: tuple[str, ...]
    surnames: tuple[str, ...]


def _region(female: str, male: str, surnames: str) -> Region:
    return Region(tuple(female.split()), tuple(male.split()), tuple(surnames.split()))


REGIONS = (
    _region(  # English
        "Emily Charlotte Grace Hannah Olivia Megan Rachel Abigail Heather Lauren Chloe Natalie Holly Amber Paige Kayla "
        "Brooke Jessica Ashley Gemma",
        "Oliver Jack Harry Connor Ryan Ethan Tyler Mason Logan Dylan Nathan Kyle Owen Caleb Jordan Wesley Gavin Trevor "
        "Bradley Elliot",
        "Smith Taylor Walker Harrison Bennett Cooper Fletcher Hughes Marsh Whitaker Barker Chapman Dawson Ellis Foster "
        "Griffiths Holloway Jennings Lawson Norris Osborne Pearson Reeves Sutton Turner Wallace Webster Yates Abbott "
        "Bishop Carlisle Doyle Everett Fraser Goodwin Hayward Ingram Kendall Lockwood Merritt",
    ),
    _region(  # Spanish
        "Lucia Carmen Paula Valeria Ximena Camila Rosario Pilar Beatriz Marisol Daniela Alejandra Catalina Guadalupe "
        "Ines Jimena Lorena Noemi Yolanda Mercedes",
        "Javier Diego Alejandro Pablo Sergio Andres Ricardo Fernando Esteban Joaquin Rodrigo Ignacio Emilio Gonzalo "
        "Hector Cristobal Ramiro Santiago Tomas Alvaro",
        "Garcia Hernandez Gutierrez Morales Ortega Castillo Vargas Delgado Fuentes Herrera Ibarra Jimenez Lozano Medina "
        "Navarro Ochoa Paredes Quintero Rojas Salazar Trejo Urbina Valencia Zamora Aguilar Benitez Cabrera Duran "
        "Escobar Figueroa Galvan Hidalgo Montoya Nieto Pacheco Rincon Serrano Tellez Vega Zuniga",
    ),
    _region(  # Portuguese and Italian
        "Giulia Chiara Francesca Bianca Martina Federica Alessia Serena Giorgia Silvia Ilaria Mariana Leticia Fernanda "
        "Isadora Larissa Vitoria Tatiana Luana Benedita",
        "Marco Luca Matteo Davide Lorenzo Alessandro Giovanni Stefano Riccardo Tommaso Thiago Rafael Gustavo Vinicius "
        "Leandro Caio Henrique Murilo Otavio Duarte",
        "Rossi Ferrari Esposito Romano Colombo Ricci Marino Greco Conti Gallo Moretti Barbieri Lombardi Santoro Rinaldi "
        "Caruso Ferrara Galli Martini Leone Silva Oliveira Pereira Carvalho Ribeiro Almeida Ferreira Barbosa Teixeira "
        "Moreira Cardoso Nogueira Machado Azevedo Tavares Pinheiro Macedo Siqueira Queiroz Furtado",
    ),
    _region(  # French
        "Camille Manon Lea Oceane Juliette Margaux Elodie Clemence Aurelie Celine Solene Amelie Mathilde Noemie "
        "Delphine Sandrine Capucine Apolline Coralie Severine",
        "Julien Antoine Baptiste Maxime Thibault Guillaume Mathieu Remi Sebastien Florian Bastien Corentin Quentin Gael "
        "Olivier Pascal Yannick Thierry Laurent Etienne",
        "Martin Bernard Dubois Moreau Girard Lefebvre Mercier Fontaine Chevalier Gauthier Perrin Roussel Lemaire "
        "Blanchard Garnier Faure Rousseau Boyer Renard Marchand Dufour Meunier Brunet Barbier Arnaud Rolland Aubert "
        "Leclerc Vasseur Delmas Bouvier Charpentier Masson Picard Caron Hubert Tessier Guerin Pelletier Lacroix",
    ),
    _region(  # German and Dutch
        "Katharina Johanna Leonie Franziska Annika Svenja Birgit Ulrike Sabine Greta Friederike Lieke Femke Sanne Anouk "
        "Marloes Fenna Wiebke Heike Jolanda",
        "Lukas Jonas Florentin Matthias Tobias Stefan Jurgen Dieter Niklas Moritz Konrad Bastian Sven Joost Daan Sjoerd "
        "Maarten Wouter Ruben Bram",
        "Schneider Fischer Weber Wagner Becker Hoffmann Schaefer Koch Richter Klein Neumann Schwarz Zimmermann Krueger "
        "Hartmann Lange Schmitt Werner Krause Lehmann Koehler Jung Vogel Keller Winkler Baumann Huber Engel Brandt "
        "Seidel Bakker Visser Mulder Dekker Hendriks Smits Kuipers Postma Verhoeven Willems",
    ),
    _region(  # Nordic and Baltic
        "Astrid Ingrid Freja Sigrid Linnea Elsa Maja Solveig Tuva Ronja Aino Helmi Kaisa Signe Ebba Hilma Dagny Ragna "
        "Liisa Egle",
        "Erik Lars Anders Bjorn Magnus Henrik Gunnar Oskar Axel Torsten Mikkel Rasmus Soren Jari Eero Antti Leif "
        "Halvard Jonatan Mantas",
        "Johansson Lindberg Nilsson Eriksson Bergstrom Lundqvist Sandberg Holmgren Nystrom Ekman Hansen Olsen Larsen "
        "Andersen Pedersen Kristiansen Haugen Berge Dahl Solberg Jensen Rasmussen Moller Thomsen Korhonen Virtanen "
        "Makinen Nieminen Laine Heikkinen Koskinen Lehtonen Saarinen Salonen Ozolins Kalnins Petrauskas Tamm Saar Kask",
    ),
    _region(  # Slavic
        "Agnieszka Katarzyna Malgorzata Zuzanna Ewa Olga Svetlana Irina Ludmila Oksana Milena Jelena Vesna Petra Lenka "
        "Tereza Danica Nadezhda Kalina Bozena",
        "Piotr Krzysztof Tomasz Wojciech Marek Dmitri Sergei Alexei Yuri Vladimir Milan Goran Zoran Jakub Ondrej Radek "
        "Stanislav Bogdan Mirko Kamil",
        "Kowalski Nowak Wisniewski Zielinski Lewandowski Wozniak Kaminski Mazur Wojcik Dabrowski Ivanov Petrov Sokolov "
        "Volkov Morozov Orlov Kuznetsov Lebedev Shevchenko Kovalenko Bondarenko Tkachenko Petrovic Jovanovic Nikolic "
        "Markovic Horvat Kovac Babic Novotny Dvorak Svoboda Prochazka Kucera Dimitrov Georgiev Stoyanov Todorov Popescu "
        "Ionescu",
    ),
    _region(  # Arabic, Persian and Turkish
        "Fatima Layla Zahra Mariam Nour Yasmin Amina Salma Huda Rania Samira Leila Shirin Parisa Nasrin Elif Zeynep "
        "Aylin Merve Defne",
        "Omar Khalid Tariq Hassan Youssef Karim Bilal Samir Faisal Nabil Rashid Reza Farhad Kamran Behrouz Emre Mehmet "
        "Murat Burak Serkan",
        "Haddad Khoury Mansour Nasser Saleh Hamdan Farouk Aziz Qasim Bakri Darwish Sabbagh Najjar Shaheen Tahan Zaki "
        "Awad Barakat Othman Rahimi Hosseini Karimi Ahmadi Moradi Jafari Kazemi Ebrahimi Sharifi Yilmaz Kaya Demir "
        "Celik Aydin Ozturk Arslan Dogan Kilic Yildiz Polat Korkmaz",
    ),
    _region(  # Indian
        "Priya Ananya Kavya Divya Meera Sneha Pooja Nisha Lakshmi Radhika Swati Deepika Shreya Aishwarya Neha Sunita "
        "Gayatri Ishita Vidya Tanvi",
        "Arjun Rohan Vikram Rahul Sanjay Aditya Karthik Suresh Manish Nikhil Rajesh Anil Pranav Siddharth Gaurav Harish "
        "Varun Mohan Ashok Tejas",
        "Sharma Patel Gupta Iyer Nair Reddy Menon Joshi Desai Kulkarni Banerjee Mukherjee Chatterjee Bhattacharya "
        "Agarwal Mehta Kapoor Malhotra Chopra Saxena Mishra Pandey Tiwari Srivastava Verma Yadav Chauhan Rathore Pillai "
        "Krishnan Subramanian Venkatesan Naidu Rao Shetty Hegde Kamath Deshpande Bose Sengupta",
    ),
    _region(  # Chinese and Korean
        "Meiling Xiaoyan Lihua Yuting Jiaying Wenjing Xinyi Qiaoling Huimin Shufen Yanfei Ruolan Jisoo Minji Hyejin "
        "Soyeon Eunji Yuna Seoyeon Haneul",
        "Weiming Jianguo Haoran Zhiwei Junjie Guoliang Yichen Mingze Boyang Xiaolong Wenhao Tianyu Minho Jihoon "
        "Seungwoo Donghyun Hyunwoo Taeyang Joonho Sungmin",
        "Wang Zhang Liu Chen Yang Huang Zhao Zhou Xu Sun Hu Zhu Guo Luo Liang Zheng Xie Tang Deng Feng Cao Peng Zeng "
        "Xiao Kim Park Choi Jeong Kang Cho Yoon Jang Lim Han Shin Seo Kwon Hwang Ahn Song",
    ),
    _region(  # Japanese
        "Yuki Sakura Haruka Ayumi Naoko Keiko Michiko Yoko Aiko Emiko Hanako Kaori Megumi Mayumi Reiko Sachiko Tomoko "
        "Akane Chihiro Misaki",
        "Hiroshi Takeshi Kenji Satoshi Daisuke Kazuki Ryota Shinji Takumi Haruto Yuto Kenta Akira Makoto Noboru Osamu "
        "Tetsuya Yusuke Masato Shota",
        "Sato Suzuki Takahashi Tanaka Watanabe Ito Yamamoto Nakamura Kobayashi Kato Yoshida Yamada Sasaki Yamaguchi "
        "Matsumoto Inoue Kimura Hayashi Shimizu Saito Mori Abe Ikeda Hashimoto Ishikawa Maeda Fujita Ogawa Okada "
        "Hasegawa Goto Murakami Kondo Ishii Sakamoto Endo Aoki Fukuda Nishimura Ueda",
    ),
    _region(  # Africa south of the Sahara
        "Amara Ngozi Chioma Adaeze Folake Yetunde Abena Akosua Efua Wanjiru Akinyi Nyambura Zanele Thandiwe Nomvula "
        "Lerato Makena Zawadi Aminata Fatoumata",
        "Chinedu Emeka Obinna Tunde Babajide Kwame Kofi Kwabena Yaw Kamau Otieno Mwangi Sipho Thabo Bongani Mandla "
        "Jabari Mamadou Ousmane Tendai",
        "Okafor Adeyemi Okonkwo Eze Nwosu Balogun Adebayo Olawale Ogunleye Achebe Mensah Owusu Boateng Asante Osei "
        "Appiah Agyeman Ofori Njoroge Kariuki Odhiambo Wekesa Kimani Ochieng Muthoni Mutua Dlamini Nkosi Khumalo "
        "Mokoena Ndlovu Zulu Moyo Chikwanha Diallo Traore Keita Ndiaye Sow Cisse",
    ),
    _region(  # Southeast Asia
        "Linh Thuy Phuong Mai Hoa Ngoc Siti Dewi Putri Ayu Indah Wulan Kanya Malee Suda Maricel Jocelyn Rowena Analyn "
        "Divina",
        "Minh Tuan Quang Duc Hieu Khoa Budi Agus Bayu Eko Wahyu Rizki Somchai Niran Anan Jomar Rodel Efren Arnel Danilo",
        "Nguyen Tran Pham Hoang Phan Vu Dang Bui Do Ngo Duong Ly Trinh Dinh Santoso Wijaya Susanto Hidayat Setiawan "
        "Nugroho Saputra Kusuma Pratama Gunawan Siregar Hartono Srisai Chaiyasit Wongsa Suksan Reyes Bautista "
        "Villanueva Manalo Panganiban Dimaculangan Magsaysay Lacson Abad Macaraeg",
    ),
)

_ONSETS = [
    "b", "br", "c", "ch", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl",
    "l", "m", "n", "p", "pr", "qu", "r", "s", "sh", "st", "t", "tr", "v", "w", "z",
]  # fmt: skip
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "io"]
_CODAS = ["", "n", "r", "l", "s", "m", "x", "nd", "rt", "ck"]
_HELDOUT_SHARE = 51 / 256
_HELDOUT_SURNAMES = 1 / 2
"""Numbers are given to people of both splits alike, so each split needs a name for every number."""


def name_split(name: str, heldout_share: float = _HELDOUT_SHARE) -> Split:
    """The only split in which a name may occur.

    Args:
        name: An invented name.
        heldout_share: Share of all spellings that belongs to held-out people.
    """
    first_byte = hashlib.sha256(name.encode("utf-8")).digest()[0]
    return "heldout" if first_byte / 256 < heldout_share else "train"


def surname_split(surname: str) -> Split:
    """The only split in which a surname of `RealNames` may occur."""
    return name_split(surname, _HELDOUT_SURNAMES)


def invent_name(rng: random.Random, split: Split) -> str:
    """Invent a name of two syllables (about 150,000 spellings) that belongs to the split."""
    while True:
        syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(2))
        name = ("".join(syllables) + rng.choice(_CODAS)).capitalize()
        if name_split(name) == split:
            return name


class NameSource(Protocol):
    """Gives names to people. The same call gets the same name."""

    def person(self, number: int, split: Split) -> tuple[str, str]:
        """The full name and the gender, ``female`` or ``male``, of the person of this number."""
        ...

    def other(self, rng: random.Random, split: Split) -> str:
        """A full name for somebody in the life of a person of this split; it may come more than once."""
        ...


class InventedNames:
    """Names of one invented word, which a model cannot have seen before. Two people may get the same."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def person(self, number: int, split: Split) -> tuple[str, str]:
        """See `NameSource`."""
        rng = random.Random(f"{self._seed}/name/{number}")
        return invent_name(rng, split), rng.choice(("female", "male"))

    def other(self, rng: random.Random, split: Split) -> str:
        """See `NameSource`."""
        return invent_name(rng, split)


class RealNames:
    """A common first name and a common surname. No two people get the same name, and no surname is in both splits.

    The first ten thousand people or so get a first name and a surname of one region; names after these mix regions.
    """

    def __init__(self, seed: int) -> None:
        """Order the names.

        Args:
            seed: Decides which number gets which name.
        """
        self._blocks: dict[Split, tuple[_Block, _Block]] = {}
        for split in ("train", "heldout"):
            rng = random.Random(f"{seed}/names/{split}")
            pairs = list(product(REGIONS, REGIONS))
            matching = _Block([(one, _surnames(other, split)) for one, other in pairs if one is other], rng)
            mixed = _Block([(one, _surnames(other, split)) for one, other in pairs if one is not other], rng)
            self._blocks[split] = (matching, mixed)

    def capacity(self, split: Split) -> int:
        """How many people of a split can be named."""
        return sum(block.size for block in self._blocks[split])

    def person(self, number: int, split: Split) -> tuple[str, str]:
        """See `NameSource`.

        Raises:
            DeltaMemError: If there are not so many names.
        """
        position = number
        for block in self._blocks[split]:
            if position < block.size:
                return block.at(position)
            position -= block.size
        raise DeltaMemError(
            f"there are real names for {self.capacity(split)} people only; person {number} needs an invented one"
        )

    def other(self, rng: random.Random, split: Split) -> str:
        """See `NameSource`; first name and surname are of one region."""
        block, _ = self._blocks[split]
        return block.at(rng.randrange(block.size))[0]


def _surnames(region: Region, split: Split) -> tuple[str, ...]:
    return tuple(surname for surname in region.surnames if surname_split(surname) == split)


class _Block:
    """First names and surnames, every pair once, in an order that looks random but takes no memory."""

    def __init__(self, parts: Sequence[tuple[Region, tuple[str, ...]]], rng: random.Random) -> None:
        self._parts = parts
        self._ends = list(accumulate(len(region.female + region.male) * len(surnames) for region, surnames in parts))
        self.size = self._ends[-1]
        # i -> factor * i + offset (modulo the size) meets every pair once if factor and size share no divisor.
        self._factor = self._offset = rng.randrange(self.size)
        while math.gcd(self._factor, self.size) != 1:
            self._factor = rng.randrange(self.size)

    def at(self, position: int) -> tuple[str, str]:
        """Full name and gender at a position below `size`."""
        index = (self._factor * position + self._offset) % self.size
        part = bisect_right(self._ends, index)
        region, surnames = self._parts[part]
        first, surname = divmod(index - (self._ends[part - 1] if part else 0), len(surnames))
        gender = "female" if first < len(region.female) else "male"
        return f"{(region.female + region.male)[first]} {surnames[surname]}", gender
