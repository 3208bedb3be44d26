"""Common first names and surnames, one word each, by region. No first name and no surname occurs twice."""

from __future__ import annotations

from dataclasses import dataclass


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
